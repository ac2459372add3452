//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// The built plugin, served over gRPC, with all its brands and eight cards: its cycles run at the shortest interval,
// 1 s, and each is counted as if it were made every 5 s. Processor time includes the tools it starts; the stand-ins are
// shell scripts, and a maker's own tool comes on top of that.
func BenchmarkPlugin8Cards(b *testing.B) {
	plugin := built(b)
	recorded := func(path string) brandtest.Answer {
		return brandtest.Sample(b, filepath.Join("../../device-plugins", path))
	}
	hostile := func(path string) brandtest.Answer {
		a := recorded(path)
		a.Text = strings.Repeat(a.Text, (16<<20)/len(a.Text))
		return a
	}
	b.Run("nvidia-smi", func(b *testing.B) {
		smi := brandtest.Tool(b, "nvidia-smi", map[string]brandtest.Answer{
			"--query-gpu=*": recorded("nvidia/testdata/standin/boxes/a40-one-dead/query-gpu.csv"),
			"-L":            recorded("nvidia/testdata/standin/boxes/a40-one-dead/list.txt"),
			"":              recorded("nvidia/testdata/standin/boxes/a40-one-dead/table.txt"),
		})
		steady(b, plugin, smi, "")
	})
	b.Run("mx-smi", func(b *testing.B) {
		tool := brandtest.Tool(b, "mx-smi", map[string]brandtest.Answer{"*": recorded("metax/testdata/table-c500-8cards-2.1.12.txt")})
		steady(b, plugin, "no-such-nvidia-smi", filepath.Dir(tool))
	})
	b.Run("output without end", func(b *testing.B) {
		smi := brandtest.Tool(b, "nvidia-smi", map[string]brandtest.Answer{"*": hostile("nvidia/testdata/standin/boxes/a40-one-dead/table.txt")})
		tool := brandtest.Tool(b, "mx-smi", map[string]brandtest.Answer{"*": hostile("metax/testdata/table-c500-8cards-2.1.12.txt")})
		steady(b, plugin, smi, filepath.Dir(tool))
	})
}

// built is the plugin as `make build` makes it.
func built(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "heteroflow-device")
	build(b, path, "-ldflags", "-s -w")
	return path
}

// steady lets the plugin make b.N cycles and reports what they cost.
func steady(b *testing.B, plugin, smi, path string) {
	b.Helper()
	if path != "" {
		b.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	p, err := host.Launch(b.Context(), host.Command{Path: plugin}, hclog.NewNullLogger())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Kill()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	schema, err := p.Base().ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		b.Fatal(err)
	}
	config, err := host.EncodeConfig(schema.GetSpec(), map[string]any{
		"root": b.TempDir(), "state_dir": b.TempDir(), "nvidia_smi": smi, "fingerprint_period": "1s",
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := p.Base().SetConfig(ctx, &basepb.SetConfigRequest{MsgpackConfig: config, PluginApiVersion: nomadplugin.APIVersion}); err != nil {
		b.Fatal(err)
	}
	cards, err := p.DeviceClient().Fingerprint(ctx, &devicepb.FingerprintRequest{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := cards.Recv(); err != nil {
		b.Fatal(err)
	}
	stats, err := p.DeviceClient().Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(time.Second)})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := stats.Recv(); err != nil {
		b.Fatal(err)
	}
	pid := p.ReattachInfo().Pid
	before := ticks(b, pid)
	for b.Loop() {
		if _, err := stats.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	each := float64(ticks(b, pid)-before) * 10 / float64(b.N) // a tick is 10 ms, see proc_pid_stat(5)
	b.ReportMetric(each, "cpu-ms/cycle")
	b.ReportMetric(each/50, "%core@5s")
	b.ReportMetric(memoryMiB(b, pid, "VmHWM"), "peak-rss-MiB")
	b.ReportMetric(memoryMiB(b, pid, "VmRSS"), "rss-MiB")
}

// ticks is the processor time of a process and of its children that have ended.
func ticks(b *testing.B, pid int) (sum int) {
	b.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(body[strings.LastIndexByte(string(body), ')')+1:]))
	for _, f := range fields[11:15] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return sum
}

// memoryMiB is one of the sizes in /proc/<pid>/status.
func memoryMiB(b *testing.B, pid int, name string) float64 {
	b.Helper()
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), name+":")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kib) / 1024
}
