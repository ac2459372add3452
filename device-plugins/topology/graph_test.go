package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestOrder_CountsAsPeopleDo(t *testing.T) {
	t.Parallel()
	want := []string{"", "GPU1", "GPU01", "GPU2", "GPU10", "GPU10a", "mlx5_2", "mlx5_10", "mlx5_bond_0"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, order)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestGraph_AddsOnlyWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	read := func(text string) Graph {
		g, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := read("card GPU0 cpus=0-3\ncard GPU1 numa=1\nnic NIC0 name=mlx5_0\nlink GPU0 GPU1 nv4\nlink GPU0 NIC0 phb gbps=2.5\n")
	g = g.Rename(map[string]string{"GPU0": "b", "GPU1": "a", "NIC0": "mlx5_0"})
	bus := read("card a numa=0\ncard b numa=0\nlink a b sys\nnic mlx5_0\nnic mlx5_1 name=mlx5_1\nlink a mlx5_1 pix\nlink b mlx5_0 pix\n")
	g.Add(&bus)
	want := "card a numa=1\ncard b numa=0 cpus=0-3\nnic mlx5_0 name=mlx5_0\nnic mlx5_1 name=mlx5_1\nlink a b nv4\nlink a mlx5_1 pix\nlink b mlx5_0 phb gbps=2.5\n"
	if diff := cmp.Diff(want, g.String()); diff != "" {
		t.Error(diff)
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"card":                                  "no name",
		"cards a":                               "no kind",
		"card a numa=x":                         "no NUMA node",
		"card a colour=red":                     "no fact",
		"card a\nlink a":                        "line 2",
		"card a\nlink a b pix":                  "nothing is named",
		"card a\ncard b\nlink a b warp":         "no kind of link",
		"card a\ncard b\nlink a b pix x=1":      "no fact",
		"card a\ncard b\nlink a b pix gbps":     "no fact",
		"card a\ncard b\nlink a b pix gbps=NaN": "no bandwidth",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range matrices(f) {
		if g, err := ParseMatrix(recorded(f, name)); err == nil {
			f.Add(g.String())
		}
	}
	f.Add("card a numa=1 cpus=0-3\nnic b name=mlx5_0\nswitch c\nnuma d\nlink a b nv18 gbps=478.116\n")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(g.String()); err != nil || again.String() != g.String() {
			t.Errorf("%v:\n%s\nbecame\n%s", err, g.String(), again.String())
		}
	})
}

// machine is a folder with the PCI tree of a machine in it.
type machine struct {
	t    *testing.T
	root string
}

// add puts a function below a host bridge and bridges: "pci0000:17/0000:17:01.0/…/0000:1a:00.0".
func (m machine) add(path string, numa int) (address string) {
	m.t.Helper()
	folder := filepath.Join(m.root, "sys/devices", path)
	address = filepath.Base(path)
	m.must(os.MkdirAll(folder, 0o755))
	m.must(os.WriteFile(filepath.Join(folder, "numa_node"), fmt.Appendln(nil, numa), 0o644))
	m.link(filepath.Join("../../../devices", path), "sys/bus/pci/devices", address)
	return address
}

func (m machine) rdma(name, path string, numa int) {
	m.t.Helper()
	address := m.add(path, numa)
	m.must(os.MkdirAll(filepath.Join(m.root, "sys/class/infiniband", name), 0o755))
	m.link("../../../"+address, "sys/class/infiniband", name, "device")
}

func (m machine) link(target string, name ...string) {
	m.t.Helper()
	at := filepath.Join(append([]string{m.root}, name...)...)
	m.must(os.MkdirAll(filepath.Dir(at), 0o755))
	m.must(os.Symlink(target, at))
}

func (m machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) read(cards ...accel.Card) Graph {
	m.t.Helper()
	g, err := FromBus(hostfs.New(m.root), cards)
	m.must(err)
	return g
}

func at(uuid, address string) accel.Card { return accel.Card{UUID: uuid, PCIAddress: address} }

// The table of koordinator-sh/koordinator#2646.
func TestFromBus_EachCardHasTheNetworkCardOfItsSwitch(t *testing.T) {
	t.Parallel()
	m := machine{t, t.TempDir()}
	nics := [][]int{{0, 1, 2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}}
	want := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"}
	var cards []accel.Card
	var order []string
	for i, below := range nics {
		bus := 0x10 * (i + 1)
		up := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1) // root port, upstream port
		numa := i / 4
		address := m.add(fmt.Sprintf("%s/0000:%02x:00.0/0000:%02x:00.0", up, bus+2, bus+3), numa)
		cards = append(cards, at(fmt.Sprintf("GPU-%d", i), address))
		order = append(order, fmt.Sprintf("GPU-%d", i))
		for k, n := range below {
			m.rdma(fmt.Sprintf("mlx5_%d", n), fmt.Sprintf("%s/0000:%02x:%02x.0/0000:%02x:00.0", up, bus+2, k+1, bus+4+k), numa)
		}
	}
	g := m.read(cards...)
	nearest := g.NearestNICs(order)
	for i, id := range order {
		if near := nearest[id]; near.Name != want[i] || near.Link.Kind != accel.LinkPIX {
			t.Errorf("%s has %+v, want %s", id, near, want[i])
		}
	}
	if got := link(t, g, "GPU-0", "GPU-1"); got != "node" {
		t.Errorf("two host bridges of one node: %s", got)
	}
	if got := link(t, g, "GPU-0", "GPU-7"); got != "sys" {
		t.Errorf("two nodes: %s", got)
	}
	if v, ok := g.Vertex("0000:11:00.0"); !ok || v.Kind != Switch || len(g.Links(v.ID, NIC)) != 3 || len(g.Links(v.ID, Card)) != 1 {
		t.Errorf("the first switch is %+v", v)
	}
	if v, ok := g.Vertex("numa1"); !ok || v.Kind != NUMA || len(g.Links("numa1", Card)) != 4 {
		t.Errorf("the second node is %+v", v)
	}
	again, err := Parse(g.String())
	if err != nil || again.String() != g.String() {
		t.Errorf("after a round: %v", err)
	}
}

func TestFromBus_Levels(t *testing.T) {
	t.Parallel()
	m := machine{t, t.TempDir()}
	const top = "pci0000:00/0000:00:01.0/0000:01:00.0" // a switch with another one below it
	a := at("a", m.add(top+"/0000:02:00.0/0000:03:00.0", 0))
	b := at("b", m.add(top+"/0000:02:01.0/0000:04:00.0", 0))
	c := at("c", m.add(top+"/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", 0))
	d := at("d", m.add("pci0000:00/0000:00:02.0/0000:08:00.0", 0))
	e := at("e", m.add("pci0000:80/0000:80:01.0/0000:81:00.0", 1))
	lost := at("lost", m.add("pci0000:c0/0000:c0:01.0/0000:c1:00.0", -1))
	nowhere, part := at("nowhere", ""), at("part", a.PCIAddress)
	g := m.read(a, b, c, d, e, lost, nowhere, part)
	for ends, want := range map[[2]string]string{
		{"a", "b"}: "pix", {"a", "c"}: "pxb", {"a", "d"}: "phb", {"a", "e"}: "sys", {"a", "lost"}: "unknown",
		{"a", "nowhere"}: "unknown", {"a", "part"}: "unknown", {"b", "part"}: "pix",
	} {
		if got := link(t, g, ends[0], ends[1]); got != want {
			t.Errorf("%v: %s, want %s", ends, got, want)
		}
	}
}

func TestFromBus_TwoCardsUnderOneSwitchShareItsNetworkCards(t *testing.T) {
	t.Parallel()
	m := machine{t, t.TempDir()}
	const up = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:0"
	a, b := at("a", m.add(up+"0.0/0000:03:00.0", 0)), at("b", m.add(up+"1.0/0000:04:00.0", 0))
	m.rdma("mlx5_2", up+"2.0/0000:05:00.0", 0)
	m.rdma("mlx5_10", up+"3.0/0000:06:00.0", 0)
	m.rdma("mlx5_3", up+"4.0/0000:07:00.1", 0)
	m.link("../0000:07:00.0", "sys/bus/pci/devices", "0000:07:00.1", "physfn") // a virtual function
	m.must(os.MkdirAll(filepath.Join(m.root, "sys/class/infiniband/rxe0"), 0o755))
	g := m.read(a, b)
	got := g.NearestNICs([]string{"a", "b"})
	if got["a"].Name != "mlx5_2" || got["b"].Name != "mlx5_10" {
		t.Errorf("got %+v", got)
	}
	empty := machine{t, t.TempDir()}.read(a)
	if got := empty.NearestNICs([]string{"a"}); len(got) != 0 || len(empty.Edges()) != 0 {
		t.Errorf("a machine that tells nothing has %+v", got)
	}
}
