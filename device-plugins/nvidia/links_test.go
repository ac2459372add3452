package nvidia

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func linkedCards() []accel.Card {
	return []accel.Card{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}, {UUID: "GPU-c", Index: 2}, {UUID: "MIG-d", Index: 0, Form: accel.Partition}}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	matrix, err := os.ReadFile(filepath.Join("..", "topology", "testdata", "recorded", "topo-matrix-a100x8-pairs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	status := "GPU 0: A (UUID: GPU-a)\n\t Link 0: 25 GB/s\nGPU 2: A (UUID: GPU-c)\n\t Link 0: 25 GB/s\n"
	smi := brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"topo -m": {Text: string(matrix)}, "nvlink -s": {Text: status}})
	g, err := detector(t, smi).Links(context.Background(), linkedCards())
	if err != nil {
		t.Fatal(err)
	}
	if e, _ := g.Edge("GPU-a", "GPU-c"); e.Link.String() != "nv12" || e.GBps == nil || *e.GBps != 300 {
		t.Errorf("the pair has %+v", e)
	}
	if e, _ := g.Edge("GPU-a", "GPU-b"); e.Link.String() != "sys" || e.GBps != nil {
		t.Errorf("no pair has %+v", e)
	}
}

func TestLinks_SpeedsAreNoMust(t *testing.T) {
	t.Parallel()
	smi := brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"topo -m": {Text: "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"}})
	g, err := detector(t, smi).Links(context.Background(), linkedCards())
	if e, ok := g.Edge("GPU-a", "GPU-b"); err != nil || !ok || e.Link.String() != "nv4" || e.GBps != nil {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestLinks_ToolThatFailsLeavesWhatTheKernelKnows(t *testing.T) {
	t.Parallel()
	for name, smi := range map[string]string{
		"not there": "/nowhere/nvidia-smi",
		"no matrix": brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"topo -m": {Text: "No devices were found"}}),
	} {
		g, err := detector(t, smi).Links(context.Background(), linkedCards())
		if err == nil || !strings.Contains(err.Error(), "matrix") || len(g.Vertices()) != 4 || len(g.Edges()) != 0 {
			t.Errorf("%s: %v\n%s", name, err, g.String())
		}
	}
}

// A box of eight cards, one of them dead, with the matrix of another box of eight.
func TestLinks_ThroughThePlugin(t *testing.T) {
	t.Parallel()
	smi := standIn(t, "a40-one-dead")
	matrix, err := os.ReadFile(filepath.Join("..", "topology", "testdata", "recorded", "topo-matrix-a100x8-pairs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(smi), "box", "topo.txt"), matrix, 0o644); err != nil {
		t.Fatal(err)
	}
	d := detector(t, smi)
	cfg := device.DefaultConfig()
	cfg.StateDir = t.TempDir()
	found, err := device.Once(t.Context(), cfg, func(device.Config) ([]device.Detector, error) { return []device.Detector{d}, nil }, hclog.NewNullLogger())
	if err != nil || len(found.Cards) != 8 {
		t.Fatalf("%+v, %v", found, err)
	}
	partner := []int{2, 3, 0, 1, 5, 4, 7, 6}
	for i, c := range found.Cards {
		links, err := accel.ParseLinks(c.Links)
		if err != nil || len(links) != 7 {
			t.Fatalf("card %d: %s, %v", i, c.Links, err)
		}
		for peer, link := range links {
			want := "sys"
			if peer == accel.PeerID(accel.NVIDIA, found.Cards[partner[i]].UUID) {
				want = "nv12"
			}
			if link.String() != want {
				t.Errorf("card %d to %s: %s, want %s", i, peer, link, want)
			}
		}
	}
}
