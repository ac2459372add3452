package links

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// machines are the matrices that were recorded on real machines and those of testdata, by file name.
func machines(t testing.TB) map[string]Matrix {
	t.Helper()
	out := map[string]Matrix{}
	for _, pattern := range []string{"../../../device-plugins/topology/testdata/recorded/*.txt", "testdata/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no machines match %s: %v", pattern, err)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".txt")
			if !strings.HasPrefix(name, "nvlink-status") { // links of one card, no matrix
				out[name] = matrixOf(t, file)
			}
		}
	}
	return out
}

func matrixOf(t testing.TB, file string) Matrix {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	read := topology.ParseMatrix
	switch {
	case filepath.Dir(file) == "testdata":
		read = topology.Parse
	case strings.HasPrefix(filepath.Base(file), "rocm"):
		read = topology.ParseROCm
	}
	g, err := read(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	m, err := MatrixOf(cardsOf(&g))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return m
}

func cardsOf(g *topology.Graph) []Card {
	var cards []Card
	for _, v := range g.Vertices() {
		if v.Kind != topology.Card {
			continue
		}
		c := Card{Peer: v.ID, Links: g.Links(v.ID, topology.Card), NUMA: v.NUMA}
		for _, l := range g.Links(v.ID, topology.NIC) {
			if c.NIC == nil || l.Compare(*c.NIC) < 0 {
				c.NIC = &l
			}
		}
		cards = append(cards, c)
	}
	return cards
}

func TestChoose_OnMachines(t *testing.T) {
	t.Parallel()
	all := machines(t)
	for _, tc := range []struct {
		name, machine string
		taken         Set
		ask           Ask
		want          Set
	}{
		{"a pair is a pair", "topo-matrix-a100x8-pairs", 0, Ask{Cards: 2}, Of(0, 2)},
		{"the next pair too", "topo-matrix-a100x8-pairs", Of(0, 2), Ask{Cards: 2}, Of(1, 3)},
		{"a single from a broken pair", "topo-matrix-a100x8-pairs", Of(5), Ask{Cards: 1}, Of(4)},
		{"two whole pairs of one NUMA node", "topo-matrix-a100x8-pairs", Of(0), Ask{Cards: 4}, Of(4, 5, 6, 7)},
		{"a single leaves the only pair", "topo-matrix-a100x4-mlx5", 0, Ask{Cards: 1}, Of(2)},
		{"a single with a network card is near it", "topo-matrix-a100x4-mlx5", 0, Ask{Cards: 1, NIC: true}, Of(0)},
		{"a quad of MLU580", "mlu580x16", Of(0), Ask{Cards: 4}, Of(2, 3, 14, 15)},
		{"the quads one after the other", "mlu580x16", Of(0, 1, 12, 13, 2, 3, 14, 15), Ask{Cards: 4}, Of(4, 5, 8, 9)},
		{"two linked quads", "mlu580x16", Of(0), Ask{Cards: 8}, Of(4, 5, 6, 7, 8, 9, 10, 11)},
		{"a quad whose partner is broken", "mlu580x16", Of(0), Ask{Cards: 4}, Of(2, 3, 14, 15)},
		{"a pair from a broken quad", "mlu580x16", Of(8, 9), Ask{Cards: 2}, Of(4, 5)},
		{"a single leaves every pair whole", "mlu580x16", Of(8, 0, 1), Ask{Cards: 1}, Of(4)},
		{"a ring of HCCS", "ascend910x8-rings", Of(1), Ask{Cards: 4}, Of(4, 5, 6, 7)},
		{"a single keeps the other ring", "ascend910x8-rings", Of(1), Ask{Cards: 1}, Of(0)},
		{"an octet of HCCS", "ascend910x16-octets", Of(3), Ask{Cards: 8}, Of(8, 9, 10, 11, 12, 13, 14, 15)},
		{"a ring of MLULink, not a chain", "mlu-rings-of-four", Of(0), Ask{Cards: 4}, Of(4, 5, 6, 7)},
		{"neighbours in a ring", "mlu-rings-of-four", Of(0, 2), Ask{Cards: 2}, Of(4, 5)},
		{"the end of a chain", "mlu-rings-of-four", Of(0), Ask{Cards: 1}, Of(1)},
		{"two links rather than one, and 0 keeps 4", "dgx1-v100", Of(1), Ask{Cards: 2}, Of(2, 3)},
		{"a quad of the cube mesh", "dgx1-v100", 0, Ask{Cards: 4}, Of(0, 1, 2, 3)},
		{"one NUMA node where the links are equal", "dgx-a100x8-pxb", Of(0), Ask{Cards: 2}, Of(2, 3)},
		{"a single from a broken NUMA node", "dgx-a100x8-pxb", Of(5), Ask{Cards: 1}, Of(4)},
		{"eight of sixteen on one side", "dgx2-v100x16", Of(2), Ask{Cards: 8}, Of(8, 9, 10, 11, 12, 13, 14, 15)},
		{"the network card decides among equals", "topo-matrix-a800x8-tabs-lost-first-seven-rows", 0, Ask{Cards: 2, NIC: true}, Of(0, 1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m, ok := all[tc.machine]
			if !ok {
				t.Fatalf("no machine %s", tc.machine)
			}
			b := Rate(m)
			got, ok := b.Choose(b.All()&^tc.taken, tc.ask)
			if !ok || got.Cards != tc.want {
				t.Errorf("got %v, want %v", got.Cards.Cards(), tc.want.Cards())
			}
		})
	}
}

func TestChoose_SaysWhetherTheNodeCouldDoBetter(t *testing.T) {
	t.Parallel()
	b := Rate(machines(t)["topo-matrix-a100x8-pairs"])
	if c, ok := b.Choose(Of(0, 1, 2), Ask{Cards: 2}); !ok || !c.Best || c.Cards != Of(0, 2) {
		t.Errorf("a pair is free: %+v", c)
	}
	if c, ok := b.Choose(Of(0, 1), Ask{Cards: 2}); !ok || c.Best {
		t.Errorf("only broken pairs are free: %+v", c)
	}
	for _, a := range []Ask{{Cards: 4}, {Cards: 0}, {Cards: -1}} {
		if c, ok := b.Choose(Of(0, 1), a); ok {
			t.Errorf("%+v of two free cards gave %+v", a, c)
		}
	}
	if c, ok := b.Choose(Of(14, 15), Ask{Cards: 1}); ok {
		t.Errorf("cards that are not there were given: %+v", c)
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	all := machines(t)
	for name, want := range map[string]string{
		"topo-matrix-a100x8-pairs":             "[[0 1 2 3] [4 5 6 7]]", // by NUMA node
		"topo-matrix-h200-single":              "[[0]]",
		"topo-matrix-a100x4-mlx5":              "[[0 1 2 3]]", // one pair with NVLink, one without
		"ascend910x8-rings":                    "[[0 1 2 3] [4 5 6 7]]",
		"mlu-rings-of-four":                    "[[0 1 2 3] [4 5 6 7]]",
		"mlu580x16":                            "[[0 1 2 3 12 13 14 15] [4 5 6 7 8 9 10 11]]",
		"dgx-a100x8-pxb":                       "[[0 1 2 3] [4 5 6 7]]",
		"rocm-showtopo-4gpu-pcie-without-numa": "[[0 1] [2 3]]",
	} {
		var got [][]int
		for _, p := range Rate(all[name]).Parts() {
			got = append(got, p.Cards())
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestMatrixOf_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	if _, err := MatrixOf(make([]Card, MaxCards+1)); err == nil || !strings.Contains(err.Error(), "up to 16") {
		t.Errorf("17 cards: %v", err)
	}
	if _, err := MatrixOf([]Card{{Peer: "a"}, {Peer: "a"}}); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("two cards of one name: %v", err)
	}
	two := 2
	m, err := MatrixOf([]Card{
		{Peer: "a", Links: map[string]accel.Link{"b": {Kind: accel.LinkNVLink, Count: &two}, "elsewhere": {Kind: accel.LinkPIX}, "a": {Kind: accel.LinkPIX}}},
		{Peer: "b", Links: map[string]accel.Link{"a": {Kind: accel.LinkSystem}}},
	})
	if err != nil || m.speed[0][1] != speed(accel.Link{Kind: accel.LinkSystem}) || m.speed[0][0] != 0 {
		t.Errorf("ends that disagree: %v, %v", m.speed[0][:2], err)
	}
}

func TestSpeed_OrdersAsLinksDo(t *testing.T) {
	t.Parallel()
	var all []accel.Link
	for _, text := range []string{
		"sio", "nv1", "nv2", "nv18", "nv", "nvsw", "hccs", "hccs-sw", "xgmi", "mlulink", "mtlink2", "xpulink", "pix", "pxb", "phb", "node", "sys", "pcie",
	} {
		l, err := accel.ParseLink(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	for _, l := range all {
		for _, k := range all {
			if want := cmp.Compare(0, l.Compare(k)); cmp.Compare(speed(l), speed(k)) != want {
				t.Errorf("%s has speed %d, %s has %d", l, speed(l), k, speed(k))
			}
		}
	}
}

// The property: what Choose gives is what trying everything gives.
func TestChoose_IsWhatTryingEverythingGives(t *testing.T) {
	t.Parallel()
	all := machines(t)
	names := slices.Sorted(func(yield func(string) bool) {
		for name, m := range all {
			if m.n <= 8 && !yield(name) {
				return
			}
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatrix(t)
		if rapid.Bool().Draw(t, "real") {
			m = all[rapid.SampledFrom(names).Draw(t, "machine")]
		}
		b := Rate(m)
		free := Set(rapid.Uint16().Draw(t, "free")) & b.All()
		for k := 1; k <= free.Len(); k++ {
			for _, nic := range []bool{false, true} {
				got, ok := b.Choose(free, Ask{k, nic})
				if want := brute(&m, free, k, nic); !ok || got.Cards != want {
					t.Fatalf("%d cards, network %v: %v, trying everything gives %v", k, nic, got.Cards.Cards(), want.Cards())
				}
			}
		}
	})
}

// Sixteen cards: trying everything is slow, so that few asks of few cards are drawn.
func TestChoose_SixteenCards(t *testing.T) {
	t.Parallel()
	all := machines(t)
	for _, name := range []string{"mlu580x16", "ascend910x16-octets", "dgx2-v100x16"} {
		m := all[name]
		b := Rate(m)
		for _, free := range []Set{0xf731, 0x39ce, 0x8fff &^ 0x70} {
			for k := 1; k <= 3; k++ {
				got, ok := b.Choose(free, Ask{Cards: k})
				if want := brute(&m, free, k, false); !ok || got.Cards != want {
					t.Errorf("%s, %d of %v: %v, trying everything gives %v", name, k, free.Cards(), got.Cards.Cards(), want.Cards())
				}
			}
		}
	}
}

func drawMatrix(t *rapid.T) Matrix {
	m := Matrix{n: rapid.IntRange(1, 8).Draw(t, "cards")}
	for i := range m.n {
		for k := range i {
			m.connect(i, k, rapid.SampledFrom([]uint16{0, 4, 4, 20, 100, 100, 200}).Draw(t, "link"))
		}
		m.nic[i] = rapid.SampledFrom([]uint16{0, 4, 20}).Draw(t, "nic")
		m.numa[i] = rapid.Int8Range(0, 2).Draw(t, "numa")
	}
	return m
}

// brute is the order of worth by its words: no table, no bit tricks, every ring and every division into groups tried.
func brute(m *Matrix, free Set, k int, nic bool) Set {
	w := tried{m: m, groups: map[int][]Set{}}
	var best Set
	var bestWorth []int
	for _, s := range subsets(free, k) {
		left := free &^ s
		worth := []int{0, w.worst(s), w.ring(s), w.sum(s), -w.span(s)}
		if nic {
			worth[0] = w.nearest(s)
			worth[3] += w.nears(s)
		}
		for _, size := range []int{8, 4, 2} {
			if size <= m.n {
				worth = append(worth, w.division(left, size))
			}
		}
		worth = append(worth, w.sum(left), w.nears(left))
		if bestWorth == nil || slices.Compare(worth, bestWorth) > 0 {
			best, bestWorth = s, worth
		}
	}
	return best
}

type tried struct {
	m      *Matrix
	groups map[int][]Set
}

func subsets(of Set, k int) []Set {
	var out []Set
	for s := 1; s < 1<<MaxCards; s++ {
		if x := Set(s); x&^of == 0 && x.Len() == k {
			out = append(out, x)
		}
	}
	return out
}

func (w tried) pairs(s Set) []int {
	var out []int
	for _, a := range s.Cards() {
		for _, b := range s.Cards() {
			if a < b {
				out = append(out, int(w.m.speed[a][b]))
			}
		}
	}
	return out
}

func (w tried) worst(s Set) int { return slices.Min(append(w.pairs(s), unlimited)) }

func (w tried) sum(s Set) int {
	sum := 0
	for _, l := range w.pairs(s) {
		sum += l
	}
	return sum
}

func (w tried) span(s Set) int {
	nodes := map[int8]bool{}
	for _, c := range s.Cards() {
		if n := w.m.numa[c]; n != 0 {
			nodes[n] = true
		}
	}
	return len(nodes)
}

func (w tried) nearest(s Set) int {
	slowest := unlimited
	for _, c := range s.Cards() {
		slowest = min(slowest, int(w.m.nic[c]))
	}
	return slowest
}

func (w tried) nears(s Set) int {
	sum := 0
	for _, c := range s.Cards() {
		sum += int(w.m.nic[c])
	}
	return sum
}

// ring tries every order of the cards after the first.
func (w tried) ring(s Set) int {
	cards := s.Cards()
	if len(cards) < 2 {
		return unlimited
	}
	best := 0
	var walk func(at, slowest int, rest Set)
	walk = func(at, slowest int, rest Set) {
		if slowest <= best {
			return
		}
		if rest == 0 {
			best = max(best, min(slowest, int(w.m.speed[at][cards[0]])))
			return
		}
		for _, next := range rest.Cards() {
			walk(next, min(slowest, int(w.m.speed[at][next])), rest&^Of(next))
		}
	}
	walk(cards[0], unlimited, s&^Of(cards[0]))
	return best
}

// division is the most separate groups of a size, each as good as the best of the node.
func (w tried) division(s Set, size int) int {
	if w.groups[size] == nil {
		var best []int
		for _, x := range subsets(Set(1<<w.m.n-1), size) {
			grade := []int{w.worst(x), w.ring(x), -w.span(x)}
			switch c := slices.Compare(grade, best); {
			case best == nil || c > 0:
				best, w.groups[size] = grade, []Set{x}
			case c == 0:
				w.groups[size] = append(w.groups[size], x)
			}
		}
	}
	var most func(s Set) int
	most = func(s Set) int {
		if s.Len() < size {
			return 0
		}
		first := Of(s.Cards()[0])
		n := most(s &^ first)
		for _, g := range w.groups[size] {
			if n == s.Len()/size {
				break
			}
			if g&^s == 0 && g&first != 0 {
				n = max(n, 1+most(s&^g))
			}
		}
		return n
	}
	return most(s)
}

func BenchmarkChoose(b *testing.B) {
	all := machines(b)
	for _, bc := range []struct {
		machine string
		k       int
	}{{"topo-matrix-h100x8", 4}, {"dgx1-v100", 4}, {"dgx2-v100x16", 8}, {"mlu580x16", 8}} {
		box := Rate(all[bc.machine])
		b.Run(fmt.Sprintf("%s/%d", bc.machine, bc.k), func(b *testing.B) {
			for b.Loop() {
				box.Choose(box.All(), Ask{Cards: bc.k, NIC: true})
			}
		})
	}
}

func BenchmarkRate(b *testing.B) {
	all := machines(b)
	for _, name := range []string{"topo-matrix-h100x8", "dgx2-v100x16", "mlu580x16"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Rate(all[name])
			}
		})
	}
}
