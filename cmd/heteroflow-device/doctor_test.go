package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/bundle"
	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// box is a machine for the doctor: its files, its tools on PATH, its history.
type box struct {
	cfg  device.Config
	path []string
}

func newBox(t *testing.T) *box {
	t.Helper()
	cfg := device.DefaultConfig()
	cfg.Root, cfg.StateDir, cfg.NvidiaSMI = t.TempDir(), t.TempDir(), "no-such-nvidia-smi"
	return &box{cfg: cfg}
}

// tool puts a tool with recorded answers on PATH.
func (b *box) tool(t *testing.T, name, brand string, answers map[string]string) {
	t.Helper()
	made := map[string]brandtest.Answer{}
	for args, file := range answers {
		body, err := os.ReadFile(filepath.Join("../../device-plugins", brand, "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		made[args] = brandtest.Answer{Text: string(body)}
	}
	b.path = append(b.path, filepath.Dir(brandtest.Tool(t, name, made)))
}

func (b *box) start(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", strings.Join(append(b.path, os.Getenv("PATH")), string(os.PathListSeparator)))
}

// boxes are recorded machines of several brands.
var boxes = map[string]func(t *testing.T, b *box){
	"nothing": func(*testing.T, *box) {},
	"moore threads": func(t *testing.T, b *box) {
		b.tool(t, "mthreads-gmi", "mthreads", map[string]string{"--query --json": "query-s5000-first-two.json", "": "table-s5000-2.3.2-first-two.txt"})
		brandtest.Bus(t, b.cfg.Root, "0000:2a:00.0", "1ed5", "0400", "mtgpu", "01")
	},
	"ascend": func(t *testing.T, b *box) {
		b.tool(t, "npu-smi", "ascend", map[string]string{"info": "info-910c-dual-die-25.2.1.txt"})
	},
	"ascend without a right": func(t *testing.T, b *box) {
		b.tool(t, "npu-smi", "ascend", map[string]string{"info": "error-dcmi-8005.txt"})
		brandtest.Bus(t, b.cfg.Root, "0000:c1:00.0", "19e5", "d802", "devdrv_device_driver", "20")
		brandtest.Files(t, b.cfg.Root, map[string]string{"sys/module/drv_davinci_intf_host/version": "1", "dev/davinci_manager": "", "dev/davinci0": ""})
	},
	"kunlunxin": func(t *testing.T, b *box) {
		b.tool(t, "xpu-smi", "kunlunxin", map[string]string{"": "table-p800-oam-5.19.0.0-index-gap.txt", "-m": "machine-readable-p800.txt"})
	},
	"kunlunxin of old": func(t *testing.T, b *box) {
		b.tool(t, "xpu_smi", "kunlunxin", map[string]string{"": "table-r300-4.31.txt"})
	},
	"hygon": func(t *testing.T, b *box) {
		b.tool(t, "hy-smi", "hygon", map[string]string{
			"--showproductname --json": "showproductname-bw.json", "--showmeminfo vram --json": "showmeminfo-vram-bw.json",
			"--showbus --json": "showbus-bw.json", "--showuniqueid --json": "showuniqueid-bw.json", "--showdriverversion": "showdriverversion-bw.txt",
		})
	},
	"amd by tool and topology": func(t *testing.T, b *box) {
		b.tool(t, "rocm-smi", "amd", map[string]string{
			"-i --showproductname --showuniqueid --showbus --showmeminfo vram --showuse --showtemp --showpower --showmaxpower --showdriverversion --json": "rocm-smi-mi100_rocm602.json",
		})
	},
	"amd by topology alone": func(t *testing.T, b *box) {
		to := filepath.Join(b.cfg.Root, "sys/class/kfd/kfd/topology")
		if err := os.CopyFS(to, os.DirFS("../../device-plugins/kfd/testdata/kfd-topology-mi308x")); err != nil {
			t.Fatal(err)
		}
	},
	"enflame": func(t *testing.T, b *box) {
		b.tool(t, "efsmi", "enflame", map[string]string{"": "table-s60-two-cards.txt"})
	},
	"metax, and moffett's tool": func(t *testing.T, b *box) {
		b.tool(t, "mx-smi", "metax", map[string]string{"": "table-c500-8cards-2.1.12.txt"})
	},
	"iluvatar": func(t *testing.T, b *box) {
		b.tool(t, "ixsmi", "iluvatar", map[string]string{"": "table-bi-v150-two-chips-4.3.0.txt"})
	},
	"intel": func(t *testing.T, b *box) {
		b.tool(t, "xpu-smi", "intel", map[string]string{"discovery -j": "discovery-v1.json", "discovery -d 0": "discovery-d0-v1.txt"})
		brandtest.Bus(t, b.cfg.Root, "0000:4d:00.0", "8086", "56c0", "i915", "01")
	},
	"a card without a driver": func(t *testing.T, b *box) {
		brandtest.Bus(t, b.cfg.Root, "0000:01:00.0", "10de", "2684", "", "a1")
		brandtest.Bus(t, b.cfg.Root, "0000:02:00.0", "1ded", "6001", "", "01")
	},
	"a tool that is no program": func(t *testing.T, b *box) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "efsmi"), []byte("no program"), 0o755); err != nil {
			t.Fatal(err)
		}
		b.path = append(b.path, dir)
		brandtest.Bus(t, b.cfg.Root, "0000:01:00.0", "1e36", "0001", "enflame", "01")
	},
}

func init() {
	for _, name := range []string{"a30-mig", "rtx5070-lost-beside", "no-driver", "a40-one-dead", "rtx4080", "rtx3090-failed-between", "h100-mig", "no-devices", "a40-table-only"} {
		boxes["nvidia "+name] = func(t *testing.T, b *box) {
			t.Setenv("NVIDIA_SMI_BOX", absolute(t, filepath.Join(standIn, "boxes", name)))
			b.cfg.NvidiaSMI = absolute(t, filepath.Join(standIn, "nvidia-smi"))
			brandtest.Bus(t, b.cfg.Root, "0000:01:00.0", "10de", "2684", "nvidia", "a1")
		}
	}
}

// unpacked is everything in a bundle's file.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(header.Name + "\n")
		if _, err := io.Copy(&all, archive); err != nil {
			t.Fatal(err)
		}
	}
}

// nameless is all that is known of cards but what names them, in an order that does not follow from their names.
func nameless(cards []device.FoundCard) []device.FoundCard {
	var all []device.FoundCard
	for _, c := range cards {
		c.UUID, c.DeviceID, c.Links, c.Parent = "", "", "", ""
		all = append(all, c)
	}
	text := func(c device.FoundCard) string {
		body, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		return string(body)
	}
	slices.SortFunc(all, func(a, b device.FoundCard) int { return strings.Compare(text(a), text(b)) })
	return all
}

// What is found on a machine is found again on its bundle, with other numbers, on any machine.
func TestReplay_FindsWhatTheMachineHas(t *testing.T) {
	for name, fill := range boxes {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			fill(t, b)
			b.start(t)
			file := filepath.Join(t.TempDir(), "box.tar.gz")
			log := hclog.NewNullLogger()
			made, err := examine(context.Background(), b.cfg, file, log)
			if err != nil {
				t.Fatal(err)
			}
			if len(made.Bundle.Differs) > 0 {
				t.Errorf("it plays otherwise for %v", made.Bundle.Differs)
			}
			t.Setenv("PATH", t.TempDir())
			t.Setenv("NVIDIA_SMI_BOX", t.TempDir())
			got, err := play(context.Background(), file, log)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Cards) != len(made.Cards) {
				t.Fatalf("%d cards, want %d", len(got.Cards), len(made.Cards))
			}
			inside := unpacked(t, file)
			for _, c := range made.Cards {
				_, id, _ := strings.Cut(c.UUID, "-")
				id = strings.TrimLeft(id, "0-")
				if !strings.HasPrefix(c.UUID, "PCI-") && !strings.HasPrefix(c.UUID, "INDEX-") && len(id) > 12 && strings.Contains(inside, id) && !strings.Contains(id, "MIG") {
					t.Errorf("the bundle has the number %q", c.UUID)
				}
			}
			if diff := cmp.Diff(nameless(made.Cards), nameless(got.Cards)); diff != "" {
				t.Errorf("cards (-machine +replay):\n%s", diff)
			}
			for i, brand := range made.Brands {
				if diff := cmp.Diff(brand, got.Brands[i]); diff != "" && !strings.Contains(diff, standIn[6:]) {
					t.Errorf("brand (-machine +replay):\n%s", diff)
				}
			}
			if diff := cmp.Diff(made.Unclaimed, got.Unclaimed); diff != "" {
				t.Errorf("(-machine +replay):\n%s", diff)
			}
		})
	}
}

// A tool that hangs is told, delays nobody, and is played at once.
func TestDiagnose_ToolThatHangs(t *testing.T) {
	b := newBox(t)
	b.path = append(b.path, filepath.Dir(brandtest.Tool(t, "npu-smi", map[string]brandtest.Answer{"info": {Hang: true}})))
	brandtest.Bus(t, b.cfg.Root, "0000:c1:00.0", "19e5", "d802", "devdrv_device_driver", "20")
	b.start(t)
	file := filepath.Join(t.TempDir(), "box.tar.gz")
	made, err := examine(context.Background(), b.cfg, file, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	check := func(d device.Diagnosis) {
		t.Helper()
		i := slices.IndexFunc(d.Brands, func(b diagnose.Brand) bool { return b.Vendor == accel.Ascend })
		if lacks := d.Brands[i].Lacks; !slices.ContainsFunc(lacks, func(l diagnose.Lack) bool {
			return l.Kind == diagnose.ToolHangs && l.What == "npu-smi does not answer after 4 s"
		}) {
			t.Errorf("lacks %+v", lacks)
		}
	}
	check(made.Diagnosis)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := play(ctx, file, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	check(got.Diagnosis)
}

func TestBundle_HoldsTheHistoryAndIsNobodyElses(t *testing.T) {
	b := newBox(t)
	record := health.Record{At: time.Now(), Kind: health.Unhealthy, Vendor: "nvidia", Model: "A40", Card: "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", Reason: "Xid 79"}
	if err := health.Append(b.cfg.StateDir, record); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "box.tar.gz")
	if _, err := examine(context.Background(), b.cfg, file, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	if inside := unpacked(t, file); !strings.Contains(inside, "Xid 79") || strings.Contains(inside, "4cf8db2d") {
		t.Errorf("the history is not in it, or not masked")
	}
	if _, err := examine(context.Background(), b.cfg, file, hclog.NewNullLogger()); err == nil {
		t.Error("a file is overwritten")
	}
}

func TestRun_Doctor(t *testing.T) {
	b := newBox(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tar.gz")
	var out, errs bytes.Buffer
	if err := run(context.Background(), []string{"-diagnose", "-root", b.cfg.Root, "-state-dir", b.cfg.StateDir, "-nvidia-smi", "none", "-bundle", file}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := run(context.Background(), []string{"-diagnose", "-replay", file}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Brands) != len(accel.Vendors()) || got.Bundle == nil {
		t.Errorf("printed %s, %v", out.String(), err)
	}
	bad := filepath.Join(dir, "bad.tar.gz")
	if err := os.WriteFile(bad, []byte("no bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(context.Background(), []string{"-diagnose", "-replay", bad}, &out, &errs); !errors.Is(err, bundle.ErrRefused) {
		t.Errorf("error %v", err)
	}
	out.Reset()
	if err := run(context.Background(), []string{"-diagnose", "-root", b.cfg.Root, "-state-dir", bad, "-nvidia-smi", "none"}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if got = (report{}); json.Unmarshal(out.Bytes(), &got) != nil || !strings.Contains(got.StateTrouble, "not a directory") {
		t.Errorf("state_dir is a file, and it is told %q", got.StateTrouble)
	}
	if err := run(context.Background(), []string{"-diagnose", "-replay", file, "-bundle", "x"}, &out, &errs); err == nil {
		t.Error("two machines are taken")
	}
}

// What a tool says of its machine and its owner is not in the bundle, in no file of it.
func TestBundle_HasNoPrivateDetails(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{"10.20.30.44", "0a:1b:2c:3d:4e:5f", "s3cr3tvalue", "zedxq", "PX01234567A", "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "secretjob.py"}
	b := newBox(t)
	text := "Host " + host + " has 10.20.30.44 and 0a:1b:2c:3d:4e:5f, token=s3cr3tvalue, /home/zedxq/run\nSerial Number : PX01234567A\nUUID 4cf8db2d-06c0-7d70-1a51-e59b25b2c16c\nProcess Name : secretjob.py\n"
	b.path = append(b.path, filepath.Dir(brandtest.Tool(t, "efsmi", map[string]brandtest.Answer{"": {Text: text}})))
	brandtest.Bus(t, b.cfg.Root, "0000:01:00.0", "1e36", "0001", "enflame", "01")
	b.start(t)
	file := filepath.Join(t.TempDir(), "box.tar.gz")
	made, err := examine(context.Background(), b.cfg, file, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	inside := unpacked(t, file)
	if !strings.Contains(inside, "Serial Number : ") {
		t.Fatal("what the tool printed is not in the bundle")
	}
	for _, s := range secrets {
		if strings.Contains(inside, s) {
			t.Errorf("the bundle has %q", s)
		}
	}
	if len(host) > 8 && strings.Contains(inside, host) { // a shorter one may be a word of the tools'
		t.Errorf("the bundle has the name of the host")
	}
	for kind, n := range made.Bundle.Masked {
		if n == 0 {
			t.Errorf("no %s were masked", kind)
		}
	}
}
