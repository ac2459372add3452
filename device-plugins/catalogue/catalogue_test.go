package catalogue

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func read(t *testing.T) []Product {
	t.Helper()
	products, err := parse(file, sourcesFile)
	if err != nil {
		t.Fatal(err)
	}
	return products
}

// What a file must not have is refused by the parser: see TestParse_SaysWhatIsWrong.
func TestProducts_AllBrands(t *testing.T) {
	t.Parallel()
	brands := map[accel.Vendor]bool{}
	for _, p := range read(t) {
		brands[p.Vendor] = true
	}
	for _, v := range accel.Vendors() {
		if !brands[v] {
			t.Errorf("no product of %s", v)
		}
		if pciVendor[v] == "" {
			t.Errorf("no PCI vendor of %s", v)
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

func BenchmarkByName(b *testing.B) {
	for b.Loop() {
		if _, ok := ByName(accel.NVIDIA, "NVIDIA H100 80GB HBM3"); !ok {
			b.Fatal("not found")
		}
	}
}
