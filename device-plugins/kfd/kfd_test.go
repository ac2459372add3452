package kfd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/kfd"
)

// machine is a root with a recorded topology.
func machine(t testing.TB, recorded string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "sys/class/kfd/kfd/topology"), os.DirFS(filepath.Join("testdata", recorded))); err != nil {
		t.Fatal(err)
	}
	return root
}

// line is place, part, memory, memory in use, device node, device, compute units.
func line(c brand.Card) string {
	used := "?"
	if c.MemoryUsedMiB != nil {
		used = fmt.Sprint(*c.MemoryUsedMiB)
	}
	return fmt.Sprintf("%s %s%s %s %s/%d renderD%d %s %s CU%s", c.ID, c.PCI, c.Part, c.Partition, used, *c.MemoryMiB, *c.Minor, c.Facts["device_id"], c.Facts["compute_units"], c.Facts["board_used_mib"])
}

func TestCards_Partitions(t *testing.T) {
	t.Parallel()
	root := machine(t, "kfd-topology-mi308x")
	brandtest.Files(t, root, map[string]string{"sys/bus/pci/devices/0000:0a:00.0/current_compute_partition": "CPX"})
	var got []string
	for _, c := range kfd.Cards(hostfs.New(root), "1002") {
		got = append(got, line(c))
	}
	var want []string
	memory := []int{49152, 49152, 49152, 49136} // the last part of a board has 16 MiB less
	for i, m := range memory {
		want = append(want, fmt.Sprintf("084cafeae17e7696 0000:0a:00.0%d CPX ?/%d renderD%d 0x74a2 20 CU2773.3", i, m, 128+i))
	}
	for i, m := range memory {
		want = append(want, fmt.Sprintf("f263c618bb387ecb 0001:0b:00.0%d partition ?/%d renderD%d 0x74a2 20 CU287.0", i, m, 160+i))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCards_OldKernel(t *testing.T) {
	t.Parallel()
	var got []string
	cards := kfd.Cards(hostfs.New(machine(t, "kfd-topology-vega10-old-kernel")), "1002")
	for _, c := range cards {
		got = append(got, line(c))
	}
	want := []string{"c34ec50444dd0a6c 0000:19:00.0  13/16368 renderD128 0x6860 64 CU13.4", "c34ec50444dd0a6d 0000:19:00.0  13/16368 renderD129 0x6860 64 CU13.4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCards_NoneOfThatMaker(t *testing.T) {
	t.Parallel()
	if got := kfd.Cards(hostfs.New(machine(t, "kfd-topology-mi308x")), "1d94"); len(got) != 0 {
		t.Errorf("cards %v", got)
	}
	if got := kfd.Cards(hostfs.New(t.TempDir()), "1002"); len(got) != 0 {
		t.Errorf("cards %v", got)
	}
}

func FuzzCards(f *testing.F) {
	for _, node := range []string{"0", "2"} {
		body, err := os.ReadFile(filepath.Join("testdata/kfd-topology-mi308x/nodes", node, "properties"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(body))
	}
	f.Fuzz(func(t *testing.T, properties string) {
		root := t.TempDir()
		node := "sys/class/kfd/kfd/topology/nodes/1/"
		brandtest.Files(t, root, map[string]string{node + "properties": properties, node + "mem_banks/0/properties": properties})
		for _, c := range kfd.Cards(hostfs.New(root), "1002") {
			if c.MemoryMiB != nil && *c.MemoryMiB > 1<<32 {
				t.Errorf("%d MiB", *c.MemoryMiB)
			}
		}
	})
}
