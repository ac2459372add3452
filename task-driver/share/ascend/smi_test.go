package ascend

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
)

func sample(t testing.TB, name string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The values are those of the samples' list: Status OK, and no number from create.
func TestParseResult_Samples(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Result{
		"set-create-vnpu-ok.txt":  {OK: true, Message: "Create vnpu success"},
		"set-destroy-vnpu-ok.txt": {OK: true, Message: "Destroy vnpu 213 success", VNPU: 213},
	} {
		if diff := cmp.Diff(want, ParseResult(sample(t, name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := ParseResult("Status : Failed\nMessage : The resource is busy: 2 jobs"); got.OK || got.Message != "The resource is busy: 2 jobs" {
		t.Errorf("a failure is read as %+v", got)
	}
}

func TestParseDivision_Sample(t *testing.T) {
	t.Parallel()
	want := Division{FreeCores: 4, Cores: 8, VNPUs: []VNPU{{ID: 212, Template: "vir04"}}, Total: 1}
	if diff := cmp.Diff(want, ParseDivision(sample(t, "info-vnpu-300i-duo.txt"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := ParseDivision("dcmi module initialize failed. ret is -8005"); got.Complete() {
		t.Errorf("an error counts as a list: %+v", got)
	}
}

func TestParseSizes_Written(t *testing.T) {
	t.Parallel()
	want := []Size{{"vir01", 1, 3}, {"vir02", 2, 6}, {"vir02_1c", 2, 6}, {"vir04", 4, 12}}
	if diff := cmp.Diff(want, ParseSizes(sample(t, "written-template-info.txt"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The table is the device plugin's too: chips are found by the numbers under which it published them.
func TestParseChips_Samples(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "..", "device-plugins", "ascend", "testdata")
	for name, want := range map[string][]Chip{
		"info-910b2c-23.0.3.txt": {{NPU: 0, Device: 0, Name: "910B2C", Bus: "0000:5a:00.0"}, {NPU: 1, Device: 1, Name: "910B2C", Bus: "0000:29:00.0"}},
		"info-910a-1.9.3.txt": {
			{NPU: 4, Device: 4, Name: "910A", Bus: "0000:c2:00.0"},
			{NPU: 5, Device: 5, Name: "910A", Bus: "0000:82:00.0"},
			{NPU: 6, Device: 6, Name: "910A", Bus: "0000:42:00.0"},
			{NPU: 7, Device: 7, Name: "910A", Bus: "0000:02:00.0"},
		},
		"info-910b4-1-25.2.0-masked-bus.txt": {{NPU: 0, Device: 0, Name: "910B4-1"}, {NPU: 1, Device: 1, Name: "910B4-1"}},
		"info-310p3-25.5.1.txt":              {{NPU: 4, Device: 0, Name: "310P3", Bus: "0000:81:00.0"}, {NPU: 5, Device: 1, Name: "310P3", Bus: "0000:85:00.0"}},
	} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got := ParseChips(string(body))
		for i := range got {
			got[i].PIDs = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, n := range map[string]int{"info-910c-dual-die-25.2.1.txt": 16, "info-310p3-duo-all-dash-25.5.1.txt": 8, "info-310-atlas800-21.0.4.txt": 4} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for _, c := range ParseChips(string(body)) {
			seen[c.Device] = true
		}
		if len(seen) != n {
			t.Errorf("%s: %d devices, want %d", name, len(seen), n)
		}
	}
}

// What is published here and in the device plugin's catalogue is the same.
func TestTemplates_AreTheCataloguesOwn(t *testing.T) {
	t.Parallel()
	for chip, p := range published {
		product, ok := catalogue.ByName(accel.Ascend, chip)
		if !ok {
			t.Errorf("%s is not in the catalogue", chip)
			continue
		}
		want, _ := product.Rounding(accel.Ascend, accel.ModeVNPU)
		if diff := cmp.Diff(want.Templates, p.templates); diff != "" || want.Parts != p.cores {
			t.Errorf("%s: %d cores, the catalogue has %d (-catalogue +here):\n%s", chip, p.cores, want.Parts, diff)
		}
	}
}

func TestMenu_BySKU(t *testing.T) {
	t.Parallel()
	later := []Size{{"vir05_1c_16g", 5, 16}, {"vir10_3c_32g", 10, 32}, {"vir10_4c_32g_m", 10, 32}}
	for name, tc := range map[string]struct {
		chip   string
		cores  int
		listed []Size
		mib    uint64
		pct    int
		want   string // empty: refused
	}{
		"910B4 has 8 GiB":                               {"910B4", 20, nil, 8192, 0, "vir05_1c_8g"},
		"910B4-1 has not":                               {"910B4-1", 20, nil, 8192, 0, ""},
		"910B2 by compute":                              {"910B2", 24, nil, 32768, 50, "vir12_3c_32g"},
		"910A takes its exact size":                     {"910A", 30, nil, 4369, 0, "vir04"},
		"910A takes the tool's GB too":                  {"910A", 30, []Size{{"vir02", 2, 2}, {"vir04", 4, 4}}, 4096, 0, "vir04"},
		"the published size too, where the tool's less": {"910A", 30, []Size{{"vir02", 2, 2}, {"vir04", 4, 4}}, 4369, 0, "vir04"},
		"910PremiumA is a 910A":                         {"Ascend910PremiumA", 30, nil, 2184, 0, "vir02"},
		"a first 910B never":                            {"910B", 20, later, 16384, 0, ""},
		"the plain template first":                      {"910B3", 20, later, 32768, 0, "vir10_3c_32g"},
		"what the tool lists, of a chip unknown":        {"910X", 20, later, 16384, 0, "vir05_1c_16g"},
		"310P3":                                         {"310P3", 8, nil, 6144, 0, "vir02"},
		"more than the chip has":                        {"910B3", 4, later, 16384, 0, ""},
	} {
		a := ask("a", tc.mib)
		a.ComputePct = tc.pct
		got, err := menuOf(tc.chip, tc.cores, tc.listed).choose(a)
		if (err != nil) != (tc.want == "") || got.Name != tc.want {
			t.Errorf("%s: got %q, %v, want %q", name, got.Name, err, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	entries, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range entries {
		f.Add(sample(f, filepath.Base(path)))
	}
	f.Add(makertest.NewNPUSMI().Table())
	f.Fuzz(func(t *testing.T, text string) {
		if d := ParseDivision(text); d.Complete() && slices.ContainsFunc(d.VNPUs, func(v VNPU) bool { return v.ID < 0 }) {
			t.Errorf("a number below 0: %+v", d)
		}
		for _, s := range ParseSizes(text) {
			if s.Cores < 1 || s.GB < 1 || s.Name == "" {
				t.Errorf("a size without a size: %+v", s)
			}
		}
		for _, c := range ParseChips(text) {
			if c.NPU < 0 || c.Number < 0 || c.Device < 0 || c.Name == "" {
				t.Errorf("a chip without a number: %+v", c)
			}
		}
		if r := ParseResult(text); r.VNPU < 0 {
			t.Errorf("a result with the number %d", r.VNPU)
		}
	})
}
