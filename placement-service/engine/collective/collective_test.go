package collective

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

var update = flag.Bool("update", false, "write testdata anew")

// two members on two nodes with two cards each.
func two(f Framework, v accel.Vendor) Gang {
	return Gang{
		ID: "llm-7b", Framework: f, Vendor: v, Port: 29500, Interface: "eth0",
		Members: []Member{
			{Node: "node-a", Address: "10.0.0.1", Cards: []Card{{0, "mlx5_0"}, {1, "mlx5_0"}}},
			{Node: "node-b", Address: "10.0.0.2", Cards: []Card{{4, "mlx5_3"}, {5, "mlx5_2"}}},
		},
	}
}

// unknown is the same gang before anything runs.
func unknown(g Gang) Gang {
	g.Port, g.Interface = 0, ""
	for i := range g.Members {
		g.Members[i].Address = ""
	}
	return g
}

// The golden files hold what every member gets.
func TestSettings(t *testing.T) {
	t.Parallel()
	elastic := two(DDP, accel.NVIDIA)
	elastic.Min, elastic.Attempt = 1, 3
	growing := elastic
	growing.Min, growing.Most = 2, 6
	oneNode := two(FSDP, accel.NVIDIA)
	oneNode.Members[1].Node = "node-a"
	for name, g := range map[string]Gang{
		"ddp-nvidia":        two(DDP, accel.NVIDIA),
		"ddp-elastic":       elastic,
		"ddp-growing":       growing,
		"fsdp-one-node":     oneNode,
		"fsdp-amd":          two(FSDP, accel.AMD),
		"deepspeed-unknown": unknown(two(DeepSpeed, accel.NVIDIA)),
		"mpi-metax":         two(MPI, accel.MetaX),
		"ddp-ascend":        two(DDP, accel.Ascend),
		"ddp-ascend-later":  unknown(two(DDP, accel.Ascend)),
		"ddp-kunlunxin":     two(DDP, accel.Kunlunxin),
		"ddp-cambricon":     two(DDP, accel.Cambricon),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, err := Settings(g)
			if err != nil {
				t.Fatal(err)
			}
			got := write(all)
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func write(all []Setting) string {
	var b strings.Builder
	for i, s := range all {
		fmt.Fprintf(&b, "member %d\n", i)
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			fmt.Fprintf(&b, "  %s=%s\n", name, s.Env[name])
		}
		for _, name := range slices.Sorted(maps.Keys(s.Files)) {
			fmt.Fprintf(&b, "  file %s\n", name)
			for line := range strings.Lines(s.Files[name]) {
				b.WriteString("    " + line)
			}
		}
	}
	return b.String()
}

func TestSettings_RanksCoverTheWorld(t *testing.T) {
	t.Parallel()
	g := two(DDP, accel.Ascend)
	g.Members = append(g.Members, Member{Node: "node-a", Cards: []Card{{7, ""}}})
	all, err := Settings(g)
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	for i, s := range all {
		if s.Env["RANK"] != fmt.Sprint(next) || s.Env["WORLD_SIZE"] != "5" {
			t.Errorf("member %d begins with rank %s of %s, want %d of 5", i, s.Env["RANK"], s.Env["WORLD_SIZE"], next)
		}
		next += len(g.Members[i].Cards)
	}
	var table struct {
		Count   string `json:"server_count"`
		Servers []struct {
			Device []struct {
				Rank string `json:"rank_id"`
			} `json:"device"`
		} `json:"server_list"`
	}
	if err := json.Unmarshal([]byte(all[0].Files[RankTable]), &table); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range table.Servers {
		for _, d := range s.Device {
			seen[d.Rank] = true
		}
	}
	if table.Count != "2" || len(seen) != 5 {
		t.Errorf("members of one node are one server: %s servers, ranks %v", table.Count, seen)
	}
	if all[2].Env["NCCL_IB_HCA"] != "" {
		t.Error("a network card that is not known was named")
	}
}

func TestSettings_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Gang){
		"no members":       func(g *Gang) { g.Members = nil },
		"write ddp, fsdp":  func(g *Gang) { g.Framework = "horovod" },
		"a number up to 2": func(g *Gang) { g.Min = 3 },
		"member 1":         func(g *Gang) { g.Members[1].Cards = nil },
	} {
		g := two(DDP, accel.NVIDIA)
		change(&g)
		if _, err := Settings(g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
