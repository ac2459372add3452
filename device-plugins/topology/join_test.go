package topology

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	matrix, err := ParseMatrix("\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\nGPU0\t X \tNV4\tPCIE\tPIX\tSYS\nGPU1\tNV4\t X \tPCIE\tSYS\tPIX\nNIC Legend:\n  NIC0: mlx5_0\n")
	if err != nil {
		t.Fatal(err)
	}
	bus, err := Parse("card a numa=0\ncard b numa=0\ncard part\nnic mlx5_0 name=mlx5_0\nnic mlx5_1 name=mlx5_1\n" +
		"card c\nlink a b sys\nlink a c pxb\nlink a mlx5_0 phb\nlink b mlx5_1 phb\n")
	if err != nil {
		t.Fatal(err)
	}
	cards := []accel.Card{{UUID: "part", Index: 0, Form: accel.Partition}, {UUID: "a", Index: 0}, {UUID: "b", Index: 1}, {UUID: "c", Index: 2}, {UUID: "lost", Index: -1}}
	g := Join(&matrix, &bus, cards)
	want := "nic NIC1\ncard a numa=0\ncard b numa=0\ncard c\nnic mlx5_0 name=mlx5_0\nnic mlx5_1 name=mlx5_1\ncard part\n" +
		"link NIC1 a sys\nlink NIC1 b pix\nlink a b nv4\nlink a c pxb\nlink a mlx5_0 pix\nlink b c pcie\nlink b mlx5_0 sys\nlink b mlx5_1 phb\n"
	if diff := cmp.Diff(want, g.String()); diff != "" {
		t.Error(diff)
	}
	byAddress, err := ParseROCm("LINK TYPE TABLE:\n 0000:C1:00.0 0000:c6:00.0\n0000:C1:00.0 SELF XGMI\n0000:c6:00.0 XGMI SELF\n")
	if err != nil {
		t.Fatal(err)
	}
	g = Join(&byAddress, &Graph{}, []accel.Card{{UUID: "x", PCIAddress: "0000:c1:00.0"}, {UUID: "y", PCIAddress: "0000:c6:00.0"}})
	if got := link(t, g, "x", "y"); got != "xgmi" {
		t.Errorf("cards known by address have %s", got)
	}
}
