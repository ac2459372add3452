package brand_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func ptr[T any](v T) *T { return &v }

// spec is a brand whose tool prints "index address" on each line, "foreign", "none" or "broken".
func spec() brand.Spec {
	return brand.Spec{
		Vendor: accel.Biren, PCI: "1ee0", NotPCI: []string{"1711"}, Signs: []string{"dev/biren-m"}, Prefix: "GPU-",
		Tools: []string{"no-such-tool", "no-such-tool-either"},
		Read: func(_ string, call brand.Call) (brand.Reading, error) {
			out, err := call()
			r := brand.Reading{Foreign: strings.Contains(out, "foreign"), NoCards: strings.Contains(out, "none")}
			if strings.Contains(out, "broken") {
				r.Trouble = "the driver cannot be reached"
			}
			for line := range strings.Lines(out) {
				index, address, _ := strings.Cut(strings.TrimSpace(line), " ")
				if i := toolout.Whole(index); i != nil {
					c := r.At(*i)
					c.PCI, c.Name = toolout.PCI(address), "Biren106B"
				}
			}
			return r, err
		},
	}
}

func detector(root, tool string) *brand.Detector {
	return brand.New(spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func says(t *testing.T, text string) string {
	t.Helper()
	return brandtest.Tool(t, "tool", map[string]brandtest.Answer{"": {Text: text, Status: 3}})
}

// machine has two cards on the bus, one of them with a number, and what is no card.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:01:00.0", "1ee0", "0001", "biren", "01")
	brandtest.Bus(t, root, "0000:02:00.0", "1ee0", "0001", "biren", "01")
	brandtest.Bus(t, root, "0000:03:00.0", "1ee0", "0001", "vfio-pci", "01")
	brandtest.Bus(t, root, "0000:04:00.0", "1ee0", "1711", "hibmc", "01")
	brandtest.Bus(t, root, "0000:05:00.0", "10de", "2684", "nvidia", "a1")
	return root
}

func TestDetect(t *testing.T) {
	t.Parallel()
	const one, two = "0 biren/gpu/Biren106B PCI-0000:01:00.0 ? ok", "1 biren/gpu/Biren106B PCI-0000:02:00.0 ? ok"
	cases := map[string]struct {
		says string
		want []string
	}{
		"the tool and the bus agree":        {"0 0000:01:00.0\n1 0000:02:00.0", []string{one, two}},
		"the tool leaves one out":           {"0 0000:01:00.0", []string{one, "-1 biren/gpu/unknown PCI-0000:02:00.0 ? " + brand.ReasonUnreported}},
		"the tool names another's card":     {"0 0000:01:00.0\n1 0000:02:00.0\n2 0000:05:00.0", []string{one, two}},
		"the tool gives no addresses":       {"0\n1", []string{"0 biren/gpu/Biren106B INDEX-0 ? ok", "1 biren/gpu/Biren106B INDEX-1 ? ok"}},
		"the tool is another maker's":       {"foreign\n0 0000:01:00.0", []string{"-1 biren/gpu/unknown PCI-0000:01:00.0 ? ok", "-1 biren/gpu/unknown PCI-0000:02:00.0 ? ok"}},
		"the tool cannot reach its driver":  {"broken", []string{"-1 biren/gpu/unknown PCI-0000:01:00.0 ? tool: the driver cannot be reached", "-1 biren/gpu/unknown PCI-0000:02:00.0 ? tool: the driver cannot be reached"}},
		"the tool prints what is not known": {"hello", []string{"-1 biren/gpu/unknown PCI-0000:01:00.0 ? tool printed nothing that is known", "-1 biren/gpu/unknown PCI-0000:02:00.0 ? tool printed nothing that is known"}},
		"the tool says that there are none": {"none", []string{"-1 biren/gpu/unknown PCI-0000:01:00.0 ? " + brand.ReasonUnreported, "-1 biren/gpu/unknown PCI-0000:02:00.0 ? " + brand.ReasonUnreported}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cards := brandtest.WantCards(t, detector(machine(t), says(t, tc.says)), tc.want...)
			if c := cards[0]; c.PCIAddress != "" && (c.NUMANode == nil || *c.NUMANode != 1 || c.Sources["numa_node"] != "sysfs") {
				t.Errorf("card %+v", c)
			}
		})
	}
}

func TestDetect_KernelAlone(t *testing.T) {
	t.Parallel()
	brandtest.WantCards(t, brand.New(spec(), brand.Config{Root: machine(t)}, hclog.NewNullLogger()),
		"-1 biren/gpu/unknown PCI-0000:01:00.0 ? ok", "-1 biren/gpu/unknown PCI-0000:02:00.0 ? ok")
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:01:00.0", "1ee0", "0001", "biren", "ff")
	brandtest.Bus(t, root, "0000:02:00.0", "1ee0", "0001", "", "01")
	brandtest.WantCards(t, detector(root, "no-such-tool"),
		"-1 biren/gpu/unknown PCI-0000:01:00.0 ? "+brand.ReasonNoAnswer, "-1 biren/gpu/unknown PCI-0000:02:00.0 ? "+brand.ReasonNoDriver)
}

// A machine whose bus has none of the brand's cards does not even start the tool.
func TestDetect_TheBusDecides(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:05:00.0", "10de", "2684", "nvidia", "a1")
	brandtest.WantCards(t, detector(root, says(t, "0 0000:01:00.0")))
	brandtest.Files(t, root, map[string]string{"dev/biren-m": ""})
	brandtest.WantCards(t, detector(root, says(t, "0 0000:01:00.0")), "0 biren/gpu/Biren106B PCI-0000:01:00.0 ? ok")
	// No bus to be seen, and no tool: there is nothing. A tool that fails there cannot tell.
	brandtest.WantCards(t, detector(t.TempDir(), "no-such-tool"))
	if cards, err := detector(t.TempDir(), says(t, "broken")).Detect(context.Background()); err == nil {
		t.Errorf("cards %v from a tool that fails", cards)
	}
}

func TestDetect_ToolThatMayNotBeStarted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := detector(t.TempDir(), path).Detect(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "tool cannot be started: ") {
		t.Errorf("error %v", err)
	}
}

func TestDetect_OneToolOneCard(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:01:00.0", "1ee0", "0001", "biren", "01")
	cards := brandtest.WantCards(t, detector(root, says(t, "4")), "4 biren/gpu/Biren106B PCI-0000:01:00.0 ? ok")
	if cards[0].Sources["pci_bus_id"] != "sysfs" {
		t.Errorf("sources %v", cards[0].Sources)
	}
}

func TestOffer_IdentitiesAreUniqueAndStable(t *testing.T) {
	t.Parallel()
	r := brand.Reading{Cards: []brand.Card{
		{Index: ptr(0), ID: "a", PCI: "0000:01:00.0"},
		{Index: ptr(1), ID: "same", PCI: "0000:02:00.0"},
		{Index: ptr(2), ID: "same", PCI: "0000:03:00.0"},
		{Index: ptr(3), ID: "board", Part: "0"},
		{Index: ptr(4), ID: "board", Part: "1"},
		{Index: ptr(5), PCI: "0000:04:00.0", Part: "0"},
		{Index: ptr(6), PCI: "0000:04:00.0", Part: "1"},
		{Index: ptr(7), PCI: "0000:05:00.0"},
		{Index: ptr(8), PCI: "0000:05:00.0"},
		{Index: ptr(9)},
		{PCI: "0000:06:00.0", Skip: true},
	}}
	var got []string
	for _, c := range r.Offer(spec()) {
		got = append(got, c.UUID)
	}
	want := []string{
		"GPU-a", "PCI-0000:02:00.0", "PCI-0000:03:00.0", "GPU-board-0", "GPU-board-1", "GPU-0000:04:00.0-0", "GPU-0000:04:00.0-1",
		"INDEX-7", "INDEX-8", "INDEX-9", "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMerge_WhatIsKnownStays(t *testing.T) {
	t.Parallel()
	r := brand.Reading{Cards: []brand.Card{{Index: ptr(1), Name: "x", PowerW: ptr(1.0)}, {PCI: "0000:01:00.0"}}}
	r.Merge(brand.Reading{Driver: "2", Cards: []brand.Card{
		{Index: ptr(1), Name: "y", PowerW: ptr(2.0), TemperatureC: ptr(3.0)}, {PCI: "0000:01:00.0", ID: "b"}, {Index: ptr(7)},
	}})
	brandtest.Want(t, r, "1 x ? ?/?MiB ?% 3C 1/?W", "? ? 0000:01:00.0 id=b ?/?MiB ?% ?C ?/?W", "7 ? ? ?/?MiB ?% ?C ?/?W")
}

func TestTool_PlaysFailure(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "tool", map[string]brandtest.Answer{"-x": {Text: "bad\n", Stderr: true, Status: 7}})
	cmd := exec.Command(path, "-x")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || string(exit.Stderr) != "bad\n" || len(out) != 0 {
		t.Errorf("%q, %v", out, err)
	}
}
