package topology

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "recorded", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parse(t *testing.T, name string) Graph {
	t.Helper()
	read := ParseMatrix
	if strings.HasPrefix(name, "rocm") {
		read = ParseROCm
	}
	g, err := read(recorded(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return g
}

// matrices lists every recorded matrix.
func matrices(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("testdata/recorded")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "nvlink") {
			names = append(names, e.Name())
		}
	}
	return names
}

func link(t *testing.T, g Graph, a, b string) string {
	t.Helper()
	e, ok := g.Edge(a, b)
	if !ok {
		return "unknown"
	}
	return e.Link.String()
}

func TestMatrices_SurviveARound(t *testing.T) {
	t.Parallel()
	names := matrices(t)
	if len(names) < 9 {
		t.Fatalf("only %v", names)
	}
	for _, name := range names {
		g := parse(t, name)
		again, err := Parse(g.String())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(g.Vertices(), again.Vertices()) + cmp.Diff(g.Edges(), again.Edges()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if again.String() != g.String() {
			t.Errorf("%s: the text is not the same after a round", name)
		}
	}
}

func TestMatrices_AreTheSameWithoutTabsColoursAndWithNoiseAround(t *testing.T) {
	t.Parallel()
	for _, name := range matrices(t) {
		if strings.HasPrefix(name, "rocm") {
			continue
		}
		text := recorded(t, name)
		want := parse(t, name)
		noisy, err := ParseMatrix("warning: infoROM is corrupted\r\n\n" + strings.ReplaceAll(text, "\n", "\r\n") + "\ndone.\n")
		if err != nil || noisy.String() != want.String() {
			t.Errorf("%s with noise: %v\n%s\nwant\n%s", name, err, noisy.String(), want.String())
		}
		flat, err := ParseMatrix(strings.ReplaceAll(text, "\t", "    "))
		if err != nil || cmp.Diff(want.Edges(), flat.Edges()) != "" {
			t.Errorf("%s without tabs: %v %s", name, err, cmp.Diff(want.Edges(), flat.Edges()))
		}
		if strings.Contains(name, "empty-affinity") {
			continue // nothing tells there any more which cell is empty
		}
		if flat.String() != want.String() {
			t.Errorf("%s without tabs is\n%s\nwant\n%s", name, flat.String(), want.String())
		}
	}
}

// Expected values: SAMPLES.md of the recorded outputs.
func TestParseMatrix_Samples(t *testing.T) {
	t.Parallel()
	all := func(n int) []string {
		var want []string
		for a := range n {
			for b := a + 1; b < n; b++ {
				want = append(want, fmt.Sprintf("link GPU%d GPU%d nv18", a, b))
			}
		}
		return want
	}
	eight := []string{}
	for i := range 8 {
		eight = append(eight, fmt.Sprintf("card GPU%d numa=0 cpus=0-63", i))
	}
	tests := map[string][]string{
		"topo-matrix-h200-single.txt": {"card GPU0 numa=0 cpus=0-23"},
		"topo-matrix-h100x8.txt":      append(eight, all(8)...),
		"topo-matrix-4gpu-empty-affinity.txt": append([]string{
			"card GPU0 numa=0 cpus=44-51,148-155", "card GPU1 numa=1", "card GPU2 numa=1", "card GPU3 numa=1",
		}, all(4)...),
		"topo-matrix-rtx5090x2-and-p2p.txt": {"card GPU0 numa=0 cpus=0-63", "card GPU1 numa=0 cpus=0-63", "link GPU0 GPU1 phb"},
	}
	for name, want := range tests {
		g := parse(t, name)
		if diff := cmp.Diff(strings.Join(want, "\n")+"\n", g.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestParseMatrix_WithoutTabsABlankAffinityStaysUnknown(t *testing.T) {
	t.Parallel()
	g, err := ParseMatrix(strings.ReplaceAll(recorded(t, "topo-matrix-4gpu-empty-affinity.txt"), "\t", "  "))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := g.Vertex("GPU0")
	second, _ := g.Vertex("GPU1")
	if first.CPUs != "44-51,148-155" || first.NUMA == nil || *first.NUMA != 0 {
		t.Errorf("GPU0 is %+v", first)
	}
	if second.CPUs != "" || second.NUMA != nil {
		t.Errorf("GPU1 is %+v, and nothing tells whether its 1 is a processor or a node", second)
	}
}

// The pairs of NVIDIA/k8s-device-plugin#546.
func TestParseMatrix_NVLinkPairs(t *testing.T) {
	t.Parallel()
	g := parse(t, "topo-matrix-a100x8-pairs.txt")
	var pairs []string
	for _, e := range g.Edges() {
		switch e.Link.String() {
		case "nv12":
			pairs = append(pairs, e.A+e.B)
		case "sys":
		default:
			t.Errorf("%+v", e)
		}
	}
	if want := []string{"GPU0GPU2", "GPU1GPU3", "GPU4GPU5", "GPU6GPU7"}; !slices.Equal(pairs, want) {
		t.Errorf("pairs are %v, want %v", pairs, want)
	}
	if len(g.Edges()) != 28 {
		t.Errorf("%d edges", len(g.Edges()))
	}
}

func TestParseMatrix_NetworkCardsUnderTheirOwnNames(t *testing.T) {
	t.Parallel()
	g := parse(t, "topo-matrix-a100x4-mlx5.txt")
	for _, want := range []string{"GPU0 GPU1 nv12", "GPU2 GPU3 node", "GPU0 mlx5_1 node", "GPU3 mlx5_0 sys", "mlx5_0 mlx5_1 pix"} {
		ends := strings.Fields(want)
		if got := link(t, g, ends[0], ends[1]); got != ends[2] {
			t.Errorf("%s: %s", want, got)
		}
	}
	nic := accel.Link{Kind: accel.LinkNode}
	got := g.NearestNICs([]string{"GPU0", "GPU1"})
	if want := map[string]Near{"GPU0": {"mlx5_0", nic}, "GPU1": {"mlx5_1", nic}}; !cmp.Equal(got, want) {
		t.Errorf("nearest are %v, want %v", got, want)
	}
}

func TestParseMatrix_NearestNetworkCards(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{ // in the order of the cards
		"topo-matrix-a800x8-tabs-lost-first-seven-rows.txt":           {"NIC2", "NIC4", "NIC6", "NIC8", "NIC1", "NIC3", "NIC5"},
		"topo-matrix-pcie-only-ten-nics-tabs-lost-first-six-rows.txt": {"NIC0", "NIC1", "NIC2", "NIC3", "NIC4", "NIC5"},
	}
	for name, want := range tests {
		text := recorded(t, name) + "\nNIC Legend:\n\n"
		g, err := ParseMatrix(text)
		if err != nil {
			t.Fatal(err)
		}
		var cards []string
		for i := range want {
			cards = append(cards, fmt.Sprintf("GPU%d", i))
		}
		if got := g.NearestNICs(cards); len(got) != 0 {
			t.Errorf("%s: %v, but the tool does not name the devices", name, got)
		}
		for i := range 10 {
			text += fmt.Sprintf("  NIC%d: mlx5_%d\n", i, i)
		}
		if g, err = ParseMatrix(text); err != nil {
			t.Fatal(err)
		}
		nearest := g.NearestNICs(cards)
		for i, c := range cards {
			near := nearest[c]
			if near.Name != strings.Replace(want[i], "NIC", "mlx5_", 1) || near.Link.Kind != accel.LinkPIX {
				t.Errorf("%s: %s has %+v, want %s", name, c, near, want[i])
			}
		}
	}
}

func TestParseMatrix_BelievesNothingThatDoesNotFit(t *testing.T) {
	t.Parallel()
	text := "\tGPU0\tGPU1\tGPU2\n" +
		"GPU0\t X \tNV4\tWARP\n" + // an unknown word
		"GPU1\tNV2\t X \tPIX\n" + // disagrees with the row above
		"GPU2\tPHB\tPHB\tPHB\n" // does not show itself
	g, err := ParseMatrix(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := "card GPU0\ncard GPU1\ncard GPU2\nlink GPU1 GPU2 pix\n"; g.String() != want {
		t.Errorf("got\n%s", g.String())
	}
	for _, text := range []string{"", "No devices were found", "\tGPU0\tGPU0\nGPU0\t X \t X \n", "\tGPU0\n", "\tmlx5_0\nmlx5_0\t X \n"} {
		if g, err := ParseMatrix(text); !errors.Is(err, ErrNoMatrix) {
			t.Errorf("%q is %q, %v", text, g.String(), err)
		}
	}
}

// The words are those of aclrtGetDevicesTopo and of nvidia-smi before it had NODE.
func TestParseMatrix_OtherWords(t *testing.T) {
	t.Parallel()
	g, err := ParseMatrix("NPU0 NPU1 NPU2 NPU3\nNPU0 X HCCS HCCS_SW SIO\nNPU1 HCCS X SOC PIB\n")
	if err != nil {
		t.Fatal(err)
	}
	for ends, want := range map[[2]string]string{
		{"NPU0", "NPU1"}: "hccs", {"NPU0", "NPU2"}: "hccs-sw", {"NPU0", "NPU3"}: "sio", {"NPU1", "NPU2"}: "sys", {"NPU1", "NPU3"}: "unknown",
	} {
		if got := link(t, g, ends[0], ends[1]); got != want {
			t.Errorf("%v: %s, want %s", ends, got, want)
		}
	}
}

func TestParseROCm(t *testing.T) {
	t.Parallel()
	text := recorded(t, "rocm-showtopo-4gpu-pcie-without-numa.txt")
	// The lines after the title of the NUMA part are of the form that ROCm/legacy-rocm-build#4740 shows.
	g, err := ParseROCm(text + "GPU[0]\t\t: (Topology) Numa Node: 0\nGPU[2]\t\t: (Topology) Numa Node  3\nGPU[0]\t\t: (Topology) Numa Affinity: 1\nGPU[1]\t\t: (Topology) Numa Node: -1\nGPU[9]\t\t: (Topology) Numa Node: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "card GPU0 numa=0\ncard GPU1\ncard GPU2 numa=3\ncard GPU3\n" +
		"link GPU0 GPU1 pcie\nlink GPU0 GPU2 pcie\nlink GPU0 GPU3 pcie\nlink GPU1 GPU2 pcie\nlink GPU1 GPU3 pcie\nlink GPU2 GPU3 pcie\n"
	if diff := cmp.Diff(want, g.String()); diff != "" {
		t.Error(diff)
	}
	if _, err := ParseROCm(strings.ReplaceAll(text, "Link Type", "Access")); !errors.Is(err, ErrNoMatrix) {
		t.Errorf("weights and hops are no links: %v", err)
	}
}

// The table of amd-smi has the form that ROCm/rocm-systems#5763 shows; the words are those of its documentation.
func TestParseROCm_AddressesForNames(t *testing.T) {
	t.Parallel()
	g, err := ParseROCm("HOPS TABLE:\n             0000:c1:00.0 0000:c6:00.0\n0000:c1:00.0 0            1\n0000:c6:00.0 1            0\n\n" +
		"LINK TYPE TABLE:\n             0000:c1:00.0 0000:c6:00.0\n0000:c1:00.0 SELF         XGMI\n0000:c6:00.0 XGMI         SELF\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := "card 0000:c1:00.0\ncard 0000:c6:00.0\nlink 0000:c1:00.0 0000:c6:00.0 xgmi\n"; g.String() != want {
		t.Errorf("got\n%s", g.String())
	}
}

func TestParseNVLinks(t *testing.T) {
	t.Parallel()
	const uuid = "GPU-00000000-0000-0000-0000-000000000000"
	cards := ParseNVLinks(recorded(t, "nvlink-status-h200.txt"))
	if len(cards) != 1 || cards[0].Label != "GPU0" || cards[0].UUID != uuid || len(cards[0].GBps) != 18 {
		t.Fatalf("got %+v", cards)
	}
	for i, speed := range cards[0].GBps {
		if speed == nil || *speed != 26.562 {
			t.Errorf("link %d: %v", i, speed)
		}
	}
	if cards := ParseNVLinks(recorded(t, "nvlink-status-h100-mig.txt")); len(cards) != 1 || len(cards[0].GBps) != 0 || cards[0].UUID != uuid {
		t.Errorf("a card in MIG mode has %+v", cards)
	}
	cards = ParseNVLinks("GPU 1: X (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: 50 GB/s\nLink 2: 0 GB/s\n")
	if len(cards) != 1 || len(cards[0].GBps) != 3 || cards[0].GBps[0] != nil || cards[0].GBps[2] != nil || *cards[0].GBps[1] != 50 {
		t.Errorf("got %+v", cards)
	}
}

func TestAddSpeeds(t *testing.T) {
	t.Parallel()
	status := func(label, speeds string) NVLinks {
		return ParseNVLinks("GPU " + strings.TrimPrefix(label, "GPU") + ": a card (UUID: u)\n" + speeds)[0]
	}
	up := "Link 0: 25 GB/s\nLink 1: <inactive>\nLink 2: 25 GB/s\n"
	g := parse(t, "topo-matrix-a100x8-pairs.txt")
	g.AddSpeeds([]NVLinks{
		status("GPU0", up), status("GPU2", up), status("GPU1", up), status("GPU3", "Link 0: 50 GB/s\n"),
		status("GPU4", up+"Link 3: 12 GB/s\n"), status("GPU5", up),
	})
	for ends, want := range map[[2]string]float64{{"GPU0", "GPU2"}: 300, {"GPU1", "GPU3"}: 0, {"GPU4", "GPU5"}: 0, {"GPU6", "GPU7"}: 0, {"GPU0", "GPU1"}: 0} {
		e, _ := g.Edge(ends[0], ends[1])
		if got := e.GBps; (got == nil) != (want == 0) || got != nil && *got != want {
			t.Errorf("%v: %v, want %v", ends, got, want)
		}
	}
}

func FuzzParseMatrix(f *testing.F) {
	for _, name := range matrices(f) {
		f.Add(recorded(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(string) (Graph, error){ParseMatrix, ParseROCm} {
			g, err := read(text)
			if err != nil {
				continue
			}
			if again, err := Parse(g.String()); err != nil || again.String() != g.String() {
				t.Errorf("%v:\n%s\nbecame\n%s", err, g.String(), again.String())
			}
		}
	})
}

func FuzzParseNVLinks(f *testing.F) {
	f.Add(recorded(f, "nvlink-status-h200.txt"))
	f.Add(recorded(f, "nvlink-status-h100-mig.txt"))
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range ParseNVLinks(text) {
			if c.Label == "" || c.UUID == "" {
				t.Errorf("%+v", c)
			}
		}
	})
}

func BenchmarkParseMatrix_Hostile(b *testing.B) {
	row := strings.Repeat("GPU1 X NV4 ", 100) + "\n"
	text := strings.Repeat(row, (1<<20)/len(row))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := ParseMatrix(text); err == nil {
			b.Fatal("that is no matrix")
		}
	}
}

func TestMarkNVSwitches(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		file, text string
		links      int // that each card has; 0 when the tool does not tell
		want       string
	}{
		"eight H100":                  {file: "topo-matrix-h100x8.txt", links: 18, want: "nvsw18"},
		"eight H100, links not known": {file: "topo-matrix-h100x8.txt", want: "nvsw18"},
		"four of eight":               {file: "topo-matrix-4gpu-empty-affinity.txt", want: "nvsw18"},
		"pairs":                       {file: "topo-matrix-a100x8-pairs.txt", links: 12, want: "sys"},
		"four A100 without a switch":  {text: "GPU0 GPU1 GPU2 GPU3\nGPU0 X NV4 NV4 NV4\nGPU1 NV4 X NV4 NV4\nGPU2 NV4 NV4 X NV4\nGPU3 NV4 NV4 NV4 X\n", links: 12, want: "nv4"},
		"sixteen V100 have six links": {text: "GPU0 GPU1 GPU2\nGPU0 X NV6 NV6\nGPU1 NV6 X NV6\nGPU2 NV6 NV6 X\n", links: 6, want: "nvsw6"},
		"two cards may be either":     {text: "GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n", links: 18, want: "nv18"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.file != "" {
				tc.text = recorded(t, tc.file)
			}
			g, err := ParseMatrix(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			var cards []NVLinks
			speed := 25.0
			for _, v := range g.Vertices() {
				if v.Kind == Card && tc.links > 0 {
					c := NVLinks{Label: v.ID}
					for range tc.links {
						c.GBps = append(c.GBps, &speed)
					}
					cards = append(cards, c)
				}
			}
			g.AddSpeeds(cards)
			g.MarkNVSwitches(cards)
			e, _ := g.Edge("GPU0", "GPU1")
			if e.Link.String() != tc.want || tc.links > 0 && tc.want != "sys" && e.GBps == nil {
				t.Errorf("GPU0 and GPU1: %s, %v GB/s", e.Link, e.GBps)
			}
			if again, err := Parse(g.String()); err != nil || again.String() != g.String() {
				t.Errorf("after a round: %v", err)
			}
		})
	}
}

// HCCS between all chips, and the processors near each.
func TestParseMatrix_Ascend(t *testing.T) {
	t.Parallel()
	g := parse(t, "npu-topo-910b3x8.txt")
	if len(g.Edges()) != 28 || !g.Has(accel.LinkHCCS) || link(t, g, "NPU2", "NPU7") != "hccs" {
		t.Errorf("%d links in\n%s", len(g.Edges()), g.String())
	}
	for id, want := range map[string]string{"NPU0": "144-167", "NPU3": "96-119", "NPU5": "0-23", "NPU7": "48-71"} {
		if v, ok := g.Vertex(id); !ok || v.CPUs != want || v.Kind != Card {
			t.Errorf("%s is %+v", id, v)
		}
	}
}

// Every word of a maker's tool for a link of its own, in a matrix and back.
func TestParseMatrix_EveryMakersLinks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"GPU0 GPU1\nGPU0 X MT2\nGPU1 MT2 X\n":                  "mtlink2",
		"GPU0 GPU1\nGPU0 X SPB\nGPU1 SPB X\n":                  "pix",
		"GPU0 GPU1 mlx5_10\nGPU0 X MPB MPB\nGPU1 MPB X NODE\n": "pxb",
		"MLU0 MLU1\nMLU0 X MLK\nMLU1 MLK X\n":                  "mlulink",
		"MLU0 MLU1\nMLU0 X MUL\nMLU1 MUL X\n":                  "pxb",
		"MLU0 MLU1\nMLU0 X MLULINK4\nMLU1 MLULINK4 X\n":        "mlulink4",
		"XPU0 XPU1\nXPU0 X XL\nXPU1 XL X\n":                    "xpulink",
		"XPU0 XPU1\nXPU0 X XPULINK\nXPU1 XPULINK X\n":          "xpulink",
		"NPU0 NPU1\nNPU0 X HCCS\nNPU1 HCCS X\n":                "hccs",
		"DCU0 DCU1\nDCU0 X XGMI\nDCU1 XGMI X\n":                "xgmi",
		"GPU0 GPU1\nGPU0 X NV6\nGPU1 NV6 X\n":                  "nv6",
	} {
		g, err := ParseMatrix(text)
		if err != nil || len(g.Edges()) == 0 || g.Edges()[0].Link.String() != want {
			t.Errorf("%q: %v\n%s", text, err, g.String())
			continue
		}
		if again, err := Parse(g.String()); err != nil || again.String() != g.String() {
			t.Errorf("%q after a round: %v", text, err)
		}
	}
}
