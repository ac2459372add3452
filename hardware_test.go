package heteroflow_test

import (
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

var update = flag.Bool("update", false, "write the tables of docs/hardware.md anew")

// The claims that the hardware pages may make of a brand, in the order of their columns.
const (
	library    = "library"
	jsonOut    = "JSON"
	listOut    = "CSV, XML"
	textOut    = "text"
	kernelOut  = "kernel"
	health     = "health"
	processes  = "processes"
	topology   = "topology"
	partitions = "partitions"
	realCard   = "real card" // its test must be in a file with the build tag realcard
)

// written begins the tests of a claim that are made on output written by hand, since none was recorded.
const written = "written: "

var claimOrder = []string{library, jsonOut, listOut, textOut, kernelOut, health, processes, topology, partitions, realCard}

// hardware is what is claimed of each brand. A claim names the tests that show it; that they exist is a test too, and
// whether they still show it is for whoever changes them to see to. Models are as the recorded outputs print them,
// versions as SOURCES.md has them.
var hardware = map[accel.Vendor]struct {
	models, versions []string
	claims           map[string]string // claim → tests, parted by blanks; of the brand's package unless another is named
}{
	accel.NVIDIA: {
		[]string{"A40", "A30", "A10G", "A100-SXM4", "H100 80GB HBM3", "H100 NVL", "H200", "L40S", "Tesla T4", "Tesla P100", "RTX 2080", "RTX 3080", "RTX 3090", "RTX 4080 SUPER", "RTX 5070 Ti", "RTX PRO 6000", "GTX 1070 Ti"},
		[]string{"510.47.03", "525.60.13", "535.183.01", "560.35.03", "590.48.01", "595.71.05", "610.57.04"},
		map[string]string{
			library: "TestNVML_DGXA100", listOut: "TestParse_RecordedOutputs", textOut: "TestParse_RecordedOutputs", kernelOut: "TestDetect_KernelAlone",
			health: "TestNVML_XidsBlameTheJobOrTheCard TestDetect_Boxes", processes: "TestProcesses", topology: "TestLinks",
			partitions: "TestNVML_PartitionsWithdrawTheirBoard TestParse_RecordedOutputs",
		},
	},
	accel.MThreads: {
		[]string{"MTT S80", "MTT S90", "MTT S5000"},
		[]string{"1.14.0", "2.3.2", "2.7.0", "3.3.5-server"},
		map[string]string{
			jsonOut: "TestParse_Recorded", textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone",
			processes: "TestDetect", topology: written + "TestLinks_ByTheTool",
		},
	},
	accel.Hygon: {
		[]string{"BW"},
		[]string{"DTK 23.10.1", "DTK 24.04.3", "rock-6.3.16-V1.1.0a", "6.3.31-V1.5.0a"},
		map[string]string{
			jsonOut: "TestDetect", textOut: "TestParse_RecordedTables", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone",
			topology: written + "TestLinks_ByTheTool", partitions: "TestDetect_VirtualCards",
		},
	},
	accel.Cambricon: {
		[]string{"MLU370-X8", "MLU370-X4"},
		[]string{"4.20.11", "5.10.13", "5.10.22"},
		map[string]string{
			textOut: "TestParse_Recorded", kernelOut: "TestDetect_KernelAlone", health: "TestDetect_KernelAlone", processes: "TestDetect", topology: written + "TestLinks_ByTheTool",
		},
	},
	accel.Biren: {claims: map[string]string{listOut: written + "TestParse", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone"}},
	accel.Ascend: {
		[]string{"310", "310P3", "910A", "910B2C", "910B4-1", "Ascend910"},
		[]string{"20.2.0", "22.0.3.1", "23.0.3", "24.1.0", "25.2.0", "25.5.1"},
		map[string]string{
			textOut: "TestParse_RecordedTables TestParse_RecordedPages", kernelOut: "brand.TestDetect_KernelAlone", health: "TestDetect_DriverOutOfReach",
			processes: "TestParse_RecordedTables", topology: "TestLinks_ByTheTool", partitions: "TestParseVNPU_Recorded TestDetect_VirtualNPUs",
		},
	},
	accel.Kunlunxin: {
		[]string{"R300", "P800 OAM"},
		[]string{"4.31", "5.0.21.26", "5.19.0.0"},
		map[string]string{
			listOut: "TestParse_Recorded", textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone",
			processes: "TestDetect", topology: written + "TestLinks_ByTheTool",
		},
	},
	accel.AMD: {
		[]string{"Instinct MI100", "Radeon Instinct MI50", "MI300A", "MI300X", "MI308X", "Radeon RX 6700", "7800 XT", "Strix Halo"},
		[]string{"ROCm 4.3", "5.7.0", "6.1.1", "ROCm 6.2.4", "6.9.0-rc5+"},
		map[string]string{
			jsonOut: "TestParse_Recorded", textOut: "TestParse_Recorded TestParse_RecordedPartitions", kernelOut: "kfd.TestCards_Partitions TestDetect_KernelAloneListsPartitions",
			health: "TestDetect_KernelCompletesTheTool", processes: "TestParse_RecordedPartitions", topology: "TestLinks_AskEachToolInItsWords",
			partitions: "TestParse_RecordedPartitions TestDetect_KernelAloneListsPartitions",
		},
	},
	accel.MetaX: {
		[]string{"MetaX C500"},
		[]string{"2.1.12", "2.3.1"},
		map[string]string{
			textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "TestParse_UnknownForThatFieldAlone", processes: "TestParse_Recorded",
		},
	},
	accel.Iluvatar: {
		[]string{"BI-V100", "BI-V150", "BI-V150S"},
		[]string{"4.0.0", "4.3.0"},
		map[string]string{
			textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone", processes: "TestParse_Recorded",
		},
	},
	accel.Enflame: {
		[]string{"S60"},
		[]string{"1.2.0.301"},
		map[string]string{textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "brand.TestDetect_KernelAlone"},
	},
	accel.Intel: {
		[]string{"B580"},
		[]string{"1.x", "v2.0"},
		map[string]string{
			jsonOut: "TestParse_Recorded", textOut: "TestParse_Recorded", kernelOut: "brand.TestDetect_KernelAlone", health: "TestParse_UnknownForThatFieldAlone",
			processes: "TestParse_Recorded",
		},
	},
}

// recordings are the files in a brand's testdata that a real tool printed, each with the row of SOURCES.md that says so.
// Outputs of another brand's tool do not count.
func recordings(t *testing.T, v accel.Vendor) (files []string) {
	t.Helper()
	dir := filepath.Join("device-plugins", string(v), "testdata")
	sources := readFile(t, filepath.Join(dir, "SOURCES.md"))
	if strings.Contains(sources, "All files here are **written,") {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "recorded")); err == nil {
		dir = filepath.Join(dir, "recorded")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	tests := testSource(t, filepath.Join("device-plugins", string(v)))
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || name == "SOURCES.md" || strings.HasPrefix(name, "written-") || strings.HasPrefix(name, "foreign-") {
			continue
		}
		if !hasSource(sources, name) {
			t.Errorf("%s/%s has no row with its source in SOURCES.md", dir, name)
		}
		if !reads(tests, name) {
			t.Errorf("no test reads %s/%s: take it out, or test what is read from it", dir, name)
		}
		files = append(files, filepath.Join(dir, name))
	}
	return files
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// hasSource looks for the row of a file. Rows may name several, also by a pattern; the last cell is the source.
func hasSource(sources, name string) bool {
	for line := range strings.Lines(sources) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || strings.TrimSpace(cells[len(cells)-2]) == "" {
			continue
		}
		for _, m := range inBackticks.FindAllStringSubmatch(cells[1], -1) {
			if ok, err := path.Match(m[1], name); err == nil && ok {
				return true
			}
		}
	}
	return false
}

// reads tells whether tests name a file, or name a pattern that fits it.
func reads(tests, name string) bool {
	if strings.Contains(tests, `"`+name+`"`) || strings.Contains(tests, "/"+name+`"`) {
		return true
	}
	for _, m := range regexp.MustCompile(`"([a-z0-9./-]*\*[a-z0-9.*-]*)"`).FindAllStringSubmatch(tests, -1) {
		if ok, err := path.Match(path.Base(m[1]), name); err == nil && ok && m[1] != "*" {
			return true
		}
	}
	return false
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// testSource is the text of all test files of a folder.
func testSource(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		all.WriteString(readFile(t, file))
	}
	return all.String()
}

func TestHardware_EveryClaimHasItsTest(t *testing.T) {
	t.Parallel()
	simulated := readFile(t, "device-plugins/sim/testdata/every.hcl")
	for _, v := range accel.Vendors() {
		is, ok := hardware[v]
		if !ok {
			t.Errorf("nothing is said of the brand %s: add what is tested of it", v)
		}
		var recorded strings.Builder
		for _, file := range recordings(t, v) {
			recorded.WriteString(readFile(t, file))
		}
		sources := readFile(t, filepath.Join("device-plugins", string(v), "testdata", "SOURCES.md"))
		for _, model := range is.models {
			if !strings.Contains(recorded.String(), model) {
				t.Errorf("%s: no recorded output names the model %q", v, model)
			}
		}
		for _, version := range is.versions {
			if !strings.Contains(sources, version) {
				t.Errorf("%s: SOURCES.md has no version %q", v, version)
			}
		}
		if !strings.Contains(simulated, `card "`+string(v)+`"`) {
			t.Errorf("%s: no card is simulated", v)
		}
		for claim, tests := range is.claims {
			if !slices.Contains(claimOrder, claim) {
				t.Errorf("%s: no column shows the claim %q", v, claim)
			}
			for _, name := range strings.Fields(strings.TrimPrefix(tests, written)) {
				checkProof(t, string(v), claim, name)
			}
		}
	}
}

func checkProof(t *testing.T, vendor, claim, name string) {
	t.Helper()
	dir, test := proofOf(vendor, name)
	source := testSource(t, dir)
	if !strings.Contains(source, "\nfunc "+test+"(") {
		t.Errorf("%s claims %q by %s, and %s has no such test", vendor, claim, test, dir)
	}
	if claim == realCard && !strings.Contains(source, "//go:build realcard") {
		t.Errorf("%s claims %q by %s, which is not kept for real cards by the build tag realcard", vendor, claim, test)
	}
}

func proofOf(vendor, name string) (dir, test string) {
	if other, test, ok := strings.Cut(name, "."); ok {
		return "device-plugins/" + other, test
	}
	return "device-plugins/" + vendor, name
}

// hardwareWords are the words of the tables in one language.
type hardwareWords struct {
	file, none, allByHand, byHand, files string
	tested, ways, told, proofs           []string // headers
	claims                               map[string]string
}

var hardwarePages = []hardwareWords{
	{
		"docs/hardware.md", "no", "no, none is public", "written", "files: %d",
		[]string{"Brand", "Recorded output", "Simulated", "Real card", "Models in the recorded output", "Versions of tools and drivers"},
		[]string{"Brand", "Library", "Tool, JSON", "Tool, CSV or XML", "Tool, text", "Kernel"},
		[]string{"Brand", "Health", "Processes", "Topology", "Partitions"},
		[]string{"Brand", "Claim", "Tests"},
		map[string]string{},
	},
	{
		"docs/zh-CN/hardware.md", "否", "否，没有公开的输出", "手写", "文件：%d",
		[]string{"品牌", "录制的输出", "模拟", "真实的卡", "录制的输出中的型号", "工具和驱动的版本"},
		[]string{"品牌", "库", "工具，JSON", "工具，CSV 或 XML", "工具，文本", "内核"},
		[]string{"品牌", "健康", "进程", "拓扑", "分区"},
		[]string{"品牌", "声明", "测试"},
		map[string]string{
			library: "库", jsonOut: "JSON", listOut: "CSV、XML", textOut: "文本", kernelOut: "内核", health: "健康", processes: "进程", topology: "拓扑",
			partitions: "分区", realCard: "真实的卡",
		},
	},
}

func (w hardwareWords) tables(t *testing.T) map[string]string {
	t.Helper()
	var tested, ways, told, proofs [][]string
	for _, v := range accel.Vendors() {
		is := hardware[v]
		mark := func(claim string) string {
			switch tests := is.claims[claim]; {
			case tests == "":
				return "–"
			case strings.HasPrefix(tests, written):
				return w.byHand
			}
			return "✓"
		}
		recorded := w.allByHand
		if n := len(recordings(t, v)); n > 0 {
			recorded = "✓ " + fmt.Sprintf(w.files, n)
		}
		onRealCard := w.none
		if is.claims[realCard] != "" {
			onRealCard = "✓"
		}
		name := "`" + string(v) + "`"
		tested = append(tested, []string{name, recorded, "✓", onRealCard, strings.Join(is.models, ", "), strings.Join(is.versions, ", ")})
		ways = append(ways, []string{name, mark(library), mark(jsonOut), mark(listOut), mark(textOut), mark(kernelOut)})
		told = append(told, []string{name, mark(health), mark(processes), mark(topology), mark(partitions)})
		for _, claim := range claimOrder {
			if is.claims[claim] == "" {
				continue
			}
			var tests []string
			for _, name := range strings.Fields(strings.TrimPrefix(is.claims[claim], written)) {
				dir, test := proofOf(string(v), name)
				tests = append(tests, "`"+path.Base(dir)+"."+test+"`")
			}
			word := claim
			if w.claims[claim] != "" {
				word = w.claims[claim]
			}
			if strings.HasPrefix(is.claims[claim], written) {
				word += " (" + w.byHand + ")"
			}
			proofs = append(proofs, []string{name, word, strings.Join(tests, ", ")})
		}
	}
	return map[string]string{
		"tested": markdown(w.tested, tested), "ways": markdown(w.ways, ways), "told": markdown(w.told, told), "proofs": markdown(w.proofs, proofs),
	}
}

func markdown(header []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(header)
	b.WriteString("|" + strings.Repeat("---|", len(header)) + "\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// The tables of the pages stand between marks and are written by `make generate`.
func TestHardware_PagesShowTheClaims(t *testing.T) {
	t.Parallel()
	for _, w := range hardwarePages {
		have := readFile(t, w.file)
		want := have
		for name, table := range w.tables(t) {
			begin, end := "<!-- generated: "+name+" -->\n", "<!-- end -->"
			before, rest, ok := strings.Cut(want, begin)
			_, after, closed := strings.Cut(rest, end)
			if !ok || !closed {
				t.Fatalf("%s has no marks of the table %s", w.file, name)
			}
			want = before + begin + table + end + after
		}
		if *update {
			if err := os.WriteFile(w.file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s is out of date, write it anew by make generate (-want +got):\n%s", w.file, diff)
		}
	}
}
