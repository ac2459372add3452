package catalogue

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

var pciID = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)

func TestProducts_AreSane(t *testing.T) {
	t.Parallel()
	products, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(products) < 120 {
		t.Errorf("%d products", len(products))
	}
	maker := map[accel.Vendor]string{
		accel.NVIDIA: "10de", accel.MThreads: "1ed5", accel.Hygon: "1d94", accel.Cambricon: "cabc", accel.Biren: "1ee0", accel.Ascend: "19e5",
		accel.Kunlunxin: "1d22", accel.AMD: "1002", accel.MetaX: "9999", accel.Iluvatar: "1e3e", accel.Enflame: "1e36", accel.Intel: "8086",
	}
	precisions := []string{"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int16"}
	names, brands := map[string]string{}, map[accel.Vendor]bool{}
	for _, p := range products {
		brands[p.Vendor] = true
		if p.Model == "" || strings.ContainsAny(p.Model, " /") || accel.ModelName(p.Vendor, p.Model) != p.Model {
			t.Errorf("model %q is not as it is offered", p.Model)
		}
		own := map[string]bool{}
		for _, name := range append([]string{p.Model}, p.Names...) {
			k := key(p.Vendor, name)
			if other := names[k]; other != "" && !own[k] {
				t.Errorf("%s is a name of %s and %s", name, other, p.Model)
			}
			names[k], own[k] = p.Model, true
		}
		seen := map[string]bool{}
		for _, id := range p.PCI {
			if !pciID.MatchString(id) || !strings.HasPrefix(id, maker[p.Vendor]+":") || seen[id] {
				t.Errorf("%s has the PCI id %q", p.Model, id)
			}
			seen[id] = true
		}
		if p.MemoryMiB != nil && (*p.MemoryMiB < 2<<10 || *p.MemoryMiB > 512<<10) {
			t.Errorf("%s has %d MiB", p.Model, *p.MemoryMiB)
		}
		if _, err := accel.ParseLink(string(p.Link)); p.Link != "" && err != nil {
			t.Errorf("%s: %v", p.Model, err)
		}
		for precision, n := range p.TFLOPS {
			if !slices.Contains(precisions, precision) || n < 0.1 || n > 10000 {
				t.Errorf("%s has %v at %s", p.Model, n, precision)
			}
		}
		checkTemplates(t, p)
	}
	for _, v := range accel.Vendors() {
		if !brands[v] {
			t.Errorf("no product of %s", v)
		}
	}
}

// checkTemplates sees that each fits on the card as often as it may be there.
func checkTemplates(t *testing.T, p Product) {
	t.Helper()
	seen := map[string]bool{}
	for _, one := range p.Templates {
		if seen[one.Name] || !slices.Contains([]string{"mig", "vnpu", "svi", "vxpu", "partition"}, one.Kind) {
			t.Errorf("%s has the template %+v", p.Model, one)
		}
		seen[one.Name] = true
		if one.MemoryMiB != nil && p.MemoryMiB != nil && *one.MemoryMiB*uint64(max(1, one.Max)) > *p.MemoryMiB {
			t.Errorf("%s cannot hold %+v", p.Model, one)
		}
	}
}

// Names that the recorded outputs of every brand have. Those with an empty model say too little, or are of no product that
// a source tells about.
func TestByName_RecordedNames(t *testing.T) {
	t.Parallel()
	for v, byName := range map[accel.Vendor]map[string]string{
		accel.NVIDIA: {
			"NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB", "NVIDIA A10G": "A10G", "NVIDIA A30": "A30",
			"NVIDIA A40": "A40", "NVIDIA H100 80GB HBM3": "H100-80GB-HBM3", "NVIDIA H100 NVL": "H100-NVL", "NVIDIA H200": "H200", "NVIDIA L40S": "L40S",
			"NVIDIA GeForce RTX 2080 SUPER": "GeForce-RTX-2080-SUPER", "NVIDIA GeForce RTX 3080": "GeForce-RTX-3080",
			"NVIDIA GeForce RTX 3090": "GeForce-RTX-3090", "NVIDIA GeForce RTX 4080 SUPER": "GeForce-RTX-4080-SUPER",
			"NVIDIA GeForce RTX 5070 Ti": "GeForce-RTX-5070-Ti", "GeForce GTX 1070 Ti": "GeForce-GTX-1070-Ti", "Tesla P100-PCIE-16GB": "Tesla-P100-PCIE-16GB",
			"Tesla T4": "Tesla-T4", "Tesla K80": "Tesla-K80", "H100-80GB-HBM3 MIG 1g.10gb": "H100-80GB-HBM3",
			"NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Blackwell-Server-Edition",
			"NVIDIA GeForce RTX 4080 ...":                  "", "ERR!": "", // cut by the tool
		},
		accel.MThreads:  {"MTT S80": "S80", "MTT S90": "S90", "MTT S5000": "S5000", "S4000": "S4000"},
		accel.Hygon:     {"BW": "BW", "K100_AI": "K100_AI", "K100-AI": "K100_AI", "DCU xxxx": ""}, // masked by its author
		accel.Cambricon: {"MLU370-X4": "MLU370-X4", "MLU370-X8": "MLU370-X8"},
		accel.Biren: {
			"Biren106M": "Biren106M", "BR106M": "Biren106M", "Biren106B": "Biren106B", "Biren106C": "Biren106C", "Biren166M": "Biren166M", "Biren166C": "Biren166C",
		},
		accel.Ascend: {
			"310": "310", "310P3": "310P3", "910A": "910A", "910B": "910B", "910B2C": "910B2C", "910B3": "910B3", "910B4-1": "910B4-1", "Ascend910": "910C",
			"xxx": "",
		},
		accel.Kunlunxin: {"R300": "R300", "P800 OAM": "P800", "K200": "K200"},
		accel.AMD: {
			"AMD Instinct MI300X OAM": "MI300X", "Arcturus GL-XL [Instinct MI100]": "MI100", "Aqua Vanjaram [Instinct MI300A]": "MI300A", "MI308X": "MI308X",
			"MI308X CPX": "MI308X", "MI355X": "MI355X", "Radeon Instinct MI50 32GB": "MI50-32GB", "Navi 32 [Radeon RX 7700 XT / 7800 XT]": "Radeon-RX-7700-XT-7800-XT",
			"Navi 22 [Radeon RX 6700/6700 XT / 6800M]":   "Radeon-RX-6700-6700-XT-6800M",
			"AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2": "", "Strix Halo [Radeon Graphics / Radeon 8050S Graphics / Radeon 8060S Graphics]": "",
		},
		accel.MetaX:    {"MetaX C500": "C500"},
		accel.Iluvatar: {"Iluvatar BI-V100": "BI-V100", "Iluvatar BI-V150": "BI-V150", "Iluvatar BI-V150S": "BI-V150S"},
		accel.Enflame:  {"S60": "S60"},
		accel.Intel:    {"Intel(R) Arc(TM) B580 Graphics": "Arc-B580", "Arc-B580": "Arc-B580", "Intel(R) Graphics [0x020a]": ""},
	} {
		for name, want := range byName {
			if p, ok := ByName(v, name); p.Model != want || ok != (want != "") {
				t.Errorf("%s %q is %q, want %q", v, name, p.Model, want)
			}
		}
	}
}

func TestByName_TheFirstKnownNameCounts(t *testing.T) {
	t.Parallel()
	if p, ok := ByName(accel.AMD, "Navi 99", "mi300x"); !ok || p.Model != "MI300X" {
		t.Errorf("%+v", p)
	}
	if _, ok := ByName(accel.Intel, "A30"); ok {
		t.Error("another brand's product was found")
	}
}

func TestByPCI(t *testing.T) {
	t.Parallel()
	for id, want := range map[[2]string]string{
		{"1002", "74A1"}: "MI300X", {"1ed5", "0400"}: "S5000", {"10de", "2235"}: "A40",
		{"10de", "25b6"}: "", // A16 and A2
		{"cabc", "0370"}: "", // a family
		{"1002", "740c"}: "", // MI250 and MI250X
		{"1d22", "3684"}: "", // K200, R300 and R480
		{"10de", "ffff"}: "",
	} {
		if p, ok := ByPCI(id[0], id[1]); p.Model != want || ok != (want != "") {
			t.Errorf("%v is %q, want %q", id, p.Model, want)
		}
	}
}

func TestParse_OneProduct(t *testing.T) {
	t.Parallel()
	memory, part := uint64(65536), uint64(8192)
	got, err := parse(strings.Join(columns, ",") + "\nascend,910B2,Da Vinci,65536,hccs,910B2;Ascend910B2,19e5:d802,vnpu,vnpu:vir03_1c_8g*8=8192/3,fp16=1.5 int8=3,a (b); c\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Product{{
		Vendor: accel.Ascend, Model: "910B2", Arch: "Da Vinci", MemoryMiB: &memory, Link: accel.LinkHCCS, Names: []string{"910B2", "Ascend910B2"},
		PCI: []string{"19e5:d802"}, Modes: []string{"vnpu"}, Templates: []Template{{Kind: "vnpu", Name: "vir03_1c_8g", Max: 8, MemoryMiB: &part, Cores: 3}},
		TFLOPS: map[string]float64{"fp16": 1.5, "int8": 3}, Sources: []string{"a (b)", "c"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	head := strings.Join(columns, ",") + "\n"
	for text, want := range map[string]string{
		"":                                       "read products",
		"vendor,model\n":                         "the first line is not",
		head + "acme,x,,,,,,,,,s\n":              `line 2: unknown brand "acme"`,
		head + "amd,x,,much,,,,,,,s\n":           `line 2: memory "much"`,
		head + "amd,x,,,,,,,mig,,s\n":            `template "mig" is not`,
		head + "amd,x,,,,,,,,fp16=fast,s\n":      `performance "fp16=fast"`,
		head + "amd,x,,,,,,,,,\n":                "x has no source",
		head + "amd,x\n":                         "wrong number of fields",
		head + "amd,x,,,,,,,,,s\namd,\"y,,,,,\n": "read products",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file[:2000])
	f.Add(strings.Join(columns, ",") + "\namd,x,,1,,,,,mig:1g*7=1/2,fp16=1,s\n")
	f.Fuzz(func(t *testing.T, text string) {
		products, err := parse(text)
		if err != nil {
			return
		}
		index(products)
		for _, p := range products {
			if len(p.Sources) == 0 || p.Vendor == "" {
				t.Errorf("product %+v", p)
			}
		}
	})
}

func BenchmarkByName(b *testing.B) {
	for b.Loop() {
		if _, ok := ByName(accel.NVIDIA, "NVIDIA H100 80GB HBM3"); !ok {
			b.Fatal("not found")
		}
	}
}
