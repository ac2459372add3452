package sim

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

const linked = `control = "control.hcl"
card "nvidia" {
  model = "H100"
  count = 3
}
card "ascend" {
  model = "910B3"
  count = 2
}
link "nv12" { cards = ["nvidia/0", "nvidia/1"] }
link "hccs" { cards = ["ascend"] }
nic "mlx5_0" { cards = ["nvidia"] }
nic "mlx5_1" {
  cards = ["ascend/1", "nvidia/2"]
  link  = "sys"
}
`

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLinks_AreOfferedWithTheCards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "sim.hcl", linked)
	p := device.New(func(device.Config) ([]device.Detector, error) {
		brands, err := Load(filepath.Join(dir, "sim.hcl"))
		var all []device.Detector
		for _, b := range brands {
			all = append(all, b)
		}
		return all, err
	}, hclog.NewNullLogger())
	cfg := device.DefaultConfig()
	cfg.StateDir = t.TempDir()
	if err := p.Use(cfg); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	var got map[string]map[string]string // model and index → attributes
	err := p.Fingerprint(short, func(groups []*devicepb.DeviceGroup) error {
		got = map[string]map[string]string{}
		complete := 0
		for _, g := range groups {
			if g.DeviceType != accel.DescriptorType {
				continue
			}
			attrs := map[string]string{}
			for name, v := range g.Attributes {
				attrs[name] = v.GetStringVal()
			}
			if attrs[accel.AttrNIC] != "" || g.Vendor == "ascend" && attrs[accel.AttrLinks] != "" {
				complete++
			}
			got[attrs[accel.AttrUUID]] = attrs
		}
		if complete == 5 {
			cancel()
		}
		return nil
	})
	if err == nil || len(got) != 5 {
		t.Fatalf("%v, %v", got, err)
	}
	kinds := func(uuid string) string {
		var all []string
		for part := range strings.SplitSeq(got[uuid][accel.AttrLinks], ",") {
			_, kind, _ := strings.Cut(part, ":")
			all = append(all, kind)
		}
		return strings.Join(all, ",") + " " + got[uuid][accel.AttrNIC] + " " + got[uuid][accel.AttrNICLink]
	}
	brands, err := Load(filepath.Join(dir, "sim.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, b := range brands {
		for _, c := range b.cards {
			lines = append(lines, kinds(c.UUID))
		}
	}
	want := "nv12 mlx5_0 pix|nv12 mlx5_0 pix| mlx5_0 pix|hccs  |hccs mlx5_1 sys"
	if joined := strings.Join(lines, "|"); joined != want {
		t.Errorf("got  %s\nwant %s", joined, want)
	}
}

func TestLinks_DownIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "sim.hcl", linked)
	brands, err := Load(filepath.Join(dir, "sim.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	down := func(b *Detector) string {
		t.Helper()
		samples, err := b.Sample(ctx, b.cards)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, c := range b.cards {
			switch yes := samples[c.UUID].LinkDown; {
			case yes == nil:
				out += "?"
			case *yes:
				out += "d"
			default:
				out += "."
			}
		}
		return out
	}
	if got := down(brands[0]) + down(brands[1]); got != "..?.." {
		t.Errorf("links that are up: %s", got)
	}
	write(t, dir, "control.hcl", "fault \"nvidia/1\" { link_down = true }\nfault \"nvidia/2\" { link_down = true }\n")
	if got := down(brands[0]) + down(brands[1]); got != ".d?.." {
		t.Errorf("a link that is down: %s", got)
	}
}

func TestLinks_RefusalsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	for block, want := range map[string]string{
		`link "warp" { cards = ["nvidia/0", "nvidia/1"] }`:                  `write for example link "nv12"`,
		`link "nv12" { cards = ["nvidia/0", "nvidia/9"] }`:                  `no card is called "nvidia/9"`,
		"nic \"mlx5_0\" {\n  cards = [\"nvidia/0\"]\n  link  = \"near\"\n}": `write for example nic "mlx5_0"`,
	} {
		dir := t.TempDir()
		write(t, dir, "sim.hcl", linked+block+"\n")
		if _, err := Load(filepath.Join(dir, "sim.hcl")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", block, err)
		}
	}
}
