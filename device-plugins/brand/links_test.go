package brand_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// tree has two cards under one PCIe switch.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, address := range []string{"0000:01:00.0", "0000:02:00.0"} {
		brandtest.Bus(t, root, address, "1ee0", "0001", "biren", "01")
		bus, device := filepath.Join(root, "sys/bus/pci/devices", address), "sys/devices/pci0000:00/0000:00:01.0/"+address
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(device)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(bus, filepath.Join(root, device)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../../"+device, bus); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLinks(t *testing.T) {
	t.Parallel()
	const list, a, b = "0 0000:01:00.0\n1 0000:02:00.0", "PCI-0000:01:00.0", "PCI-0000:02:00.0"
	matrix := "GPU0 GPU1\nGPU0 X XPULINK\nGPU1 XPULINK X\n"
	cases := map[string]struct {
		topo   string
		want   string
		failed bool
	}{
		"no matrix":           {want: "pix"},
		"a matrix":            {topo: matrix, want: "xpulink"},
		"a matrix that fails": {topo: "no such command", want: "pix", failed: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec()
			if tc.topo != "" {
				s.Links = func(_ string, call brand.Call) (topology.Graph, error) {
					out, err := call("topo")
					if err != nil {
						return topology.Graph{}, err
					}
					return topology.ParseMatrix(out)
				}
			}
			tool := brandtest.Tool(t, "tool", map[string]brandtest.Answer{"": {Text: list}, "topo": {Text: tc.topo}})
			d := brand.New(s, brand.Config{Root: tree(t), Tool: tool}, hclog.NewNullLogger())
			cards, err := d.Detect(context.Background())
			if err != nil || len(cards) != 2 {
				t.Fatalf("%v, %v", cards, err)
			}
			g, err := d.Links(context.Background(), cards)
			if (err != nil) != tc.failed || err != nil && !strings.Contains(err.Error(), "tool") {
				t.Errorf("error %v", err)
			}
			if e, ok := g.Edge(a, b); !ok || e.Link.String() != tc.want {
				t.Errorf("got %+v in\n%s", e, g.String())
			}
		})
	}
}
