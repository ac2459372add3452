package nvidia

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
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
