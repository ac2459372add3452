package brand_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

func TestDetect_SourcesThatDisagree(t *testing.T) {
	t.Parallel()
	s := spec()
	s.Read = func(string, brand.Call) (brand.Reading, error) {
		return brand.Reading{Driver: "1.2", Cards: []brand.Card{
			{Index: ptr(0), ID: "a", Name: "x", PCI: "0000:01:00.0", MemoryMiB: ptr[uint64](65520)},
			{Index: ptr(1), ID: "b", Name: "x", PCI: "0000:02:00.0", MemoryMiB: ptr[uint64](32768)},
		}}, nil
	}
	s.Kernel = func(hostfs.FS) brand.Reading {
		return brand.Reading{Driver: "1.3", Cards: []brand.Card{
			{ID: "a", PCI: "0000:02:00.0", MemoryMiB: ptr[uint64](65536)}, {PCI: "0000:02:00.0", MemoryMiB: ptr[uint64](16384)},
		}}
	}
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:01:00.0", "1ee0", "0001", "biren", "01")
	brandtest.Bus(t, root, "0000:02:00.0", "1ee0", "0001", "biren", "01")
	cards := brandtest.WantCards(t, brand.New(s, brand.Config{Root: root, Tool: "no-such-tool"}, hclog.NewNullLogger()),
		"0 biren/gpu/x GPU-a 65520 ok", "1 biren/gpu/x GPU-b 32768 ok")
	const driver = "driver_version: the tool says 1.2, the kernel 1.3"
	want := [][]string{
		{"pci_bus_id: the tool says 0000:01:00.0, the kernel 0000:02:00.0", driver},
		{"memory: the tool says 32768 MiB, the kernel 16384 MiB", driver},
	}
	if diff := cmp.Diff(want, [][]string{cards[0].Conflicts, cards[1].Conflicts}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
