package catalogue

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

const someSources = "key,title,address\npage,Maker's page,maker.example/page\n"

func TestParse_OneProduct(t *testing.T) {
	t.Parallel()
	memory, part := uint64(65536), uint64(8192)
	got, err := parse(strings.Join(columns, ",")+"\nascend,910B2,Da Vinci,65536,hccs=392.5,910B2;Ascend910B2,19e5:d802,vnpu,vnpu:vir03_1c_8g*8=8192/3,fp16=1.5 int8=3,a (b);@page\n",
		someSources)
	if err != nil {
		t.Fatal(err)
	}
	want := []Product{{
		Vendor: accel.Ascend, Model: "910B2", Arch: "Da Vinci", MemoryMiB: &memory, Link: accel.LinkHCCS, LinkGBps: 392.5, Names: []string{"910B2", "Ascend910B2"},
		PCI: []string{"19e5:d802"}, Modes: []string{"vnpu"}, Templates: []Template{{Kind: "vnpu", Name: "vir03_1c_8g", Max: 8, MemoryMiB: &part, Cores: 3}},
		TFLOPS: Peak{"fp16": 1.5, "int8": 3}, Sources: []string{"a (b)", "Maker's page, maker.example/page"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_Links(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Product{
		"nv": {Link: accel.LinkNVLink}, "nv:4": {Link: accel.LinkNVLink, LinkGen: 4}, "nv:3=112.5": {Link: accel.LinkNVLink, LinkGen: 3, LinkGBps: 112.5},
		"xgmi=896": {Link: accel.LinkXGMI, LinkGBps: 896}, "pcie:5": {Link: accel.LinkPCIe, LinkGen: 5}, "": {},
	} {
		got, err := parse(strings.Join(columns, ",")+"\nnvidia,x,,,"+text+",,,,,,s\n", someSources)
		if err != nil || got[0].Link != want.Link || got[0].LinkGen != want.LinkGen || got[0].LinkGBps != want.LinkGBps {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestParse_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	head := strings.Join(columns, ",") + "\n"
	for text, want := range map[string]string{
		"":                                           "read products",
		"vendor,model\n":                             "the first line of the products is not",
		head + "acme,x,,,,,,,,,s\n":                  `line 2: unknown brand "acme"`,
		head + "amd,x,,much,,,,,,,s\n":               `line 2: memory "much"`,
		head + "amd,x,,,,,,,mig,,s\n":                `template "mig" is not`,
		head + "amd,x,,,,,,,,fp16=fast,s\n":          `performance "fp16=fast"`,
		head + "amd,x,,,,,,,,,\n":                    "x has no source",
		head + "amd,x,,,,,,,,,@gone\n":               `source "gone" is not in sources.csv`,
		head + "amd,x\n":                             "wrong number of fields",
		head + "amd,x,,,,,,,,,s\namd,\"y,,,,,\n":     "read products",
		head + "amd,x,,,,,,,,,s\namd,X,,,,,,,,,s\n":  `line 3: X: x has the name "amd/x" too`,
		head + "amd,x,,,,,,,,,s\namd,y,,,,x,,,,,s\n": `line 3: y: x has the name "amd/x" too`,
		head + "amd,a b,,,,,,,,,s\n":                 `model "a b"`,
		// a unit that is not the file's
		head + "amd,x,,80,,,,,,,s\n":                  "memory of 80 MiB",
		head + "amd,x,,80GB,,,,,,,s\n":                `memory "80GB"`,
		head + "amd,x,,4294967295,,,,,,,s\n":          "memory of 4294967295 MiB",
		head + "amd,x,,,,,,,,fp16=312000,s\n":         `performance "fp16=312000"`,
		head + "amd,x,,,,,,,,fp64=9700,s\n":           "performance of 9700 at fp64",
		head + "amd,x,,,,,,,,fp16=0.0,s\n":            "performance of 0 at fp16",
		head + "amd,x,,,,,,,,fp16=1e3,s\n":            `performance "fp16=1e3"`,
		head + "amd,x,,,,,,,,fp16=+Inf,s\n":           `performance "fp16=+Inf"`,
		head + "amd,x,,,,,,,,fp12=4,s\n":              "performance of 4 at fp12",
		head + "amd,x,,,,,,,,fp16=4 fp16=5,s\n":       `performance "fp16" comes twice`,
		head + "nvidia,x,,,nv=4.5,,,,,,s\n":           "link nv of 4.5 GB/s",
		head + "nvidia,x,,,nv=9000,,,,,,s\n":          "link nv of 9000 GB/s",
		head + "nvidia,x,,,nv:9,,,,,,s\n":             "link nv of generation 9",
		head + "nvidia,x,,,nv:0,,,,,,s\n":             `link "nv:0" is not`,
		head + "nvidia,x,,,NVLink,,,,,,s\n":           `link "NVLink" is not`,
		head + "nvidia,x,,,pix,,,,,,s\n":              `link "pix" is not between products`,
		head + "nvidia,x,,,pcie=64,,,,,,s\n":          "link pcie of 64 GB/s",
		head + "ascend,x,,,hccs:1,,,,,,s\n":           "link hccs of generation 1",
		head + "amd,x,,,,,10de:1,,,,s\n":              `PCI id "10de:1"`,
		head + "amd,x,,,,,10de:0001,,,,s\n":           `PCI id "10de:0001"`,
		head + "amd,x,,,,,1002:00AA,,,,s\n":           `PCI id "1002:00AA"`,
		head + "amd,x,,,,,1002:0001;1002:0001,,,,s\n": `"1002:0001" comes twice`,
		head + "amd,x,,,,y;y,,,,,s\n":                 `"y" comes twice`,
		head + "amd,x,,,,,,,,,s;s\n":                  `"s" comes twice`,
		head + "amd,x,,,,,,,mig:1g;mig:1g,,s\n":       `"1g" comes twice`,
		head + "amd,x,,,,,,,slice:1g,,s\n":            `template of the kind "slice"`,
		head + "amd,x,,8192,,,,,mig:1g*3=4096,,s\n":   "3 of the template 1g do not fit",
	} {
		if _, err := parse(text, someSources); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestParseSources_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	head := strings.Join(sourceColumns, ",") + "\n"
	for text, want := range map[string]string{
		"":                                      "read sources",
		"key\n":                                 "the first line of the sources is not",
		head + "A,t,a.example\n":                `key "A"`,
		head + ",t,a.example\n":                 `key ""`,
		head + "a,,a.example\n":                 `the title ""`,
		head + "a,t ,a.example\n":               `the title "t "`,
		head + "a,t,\n":                         `the address ""`,
		head + "a,t,example\n":                  `the address "example"`,
		head + "a,t,a.example/ b\n":             `the address "a.example/ b"`,
		head + "a,t,https://a.example\n":        `the address "https://a.example"`,
		head + "a,t,a.example\na,u,b.example\n": `sources, line 3: key "a" comes twice`,
		head + "a,t\n":                          "wrong number of fields",
	} {
		if _, err := parseSources(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
		if _, err := parse(strings.Join(columns, ",")+"\n", text); err == nil {
			t.Errorf("%q: the products were read", text)
		}
	}
}

func TestSources_AllAreUsedAndNoneIsTwice(t *testing.T) {
	t.Parallel()
	sources, err := parseSources(sourcesFile)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range read(t) {
		for _, one := range p.Sources {
			used[one] = true
		}
	}
	texts := map[string]string{}
	for key, text := range sources {
		if !used[text] {
			t.Errorf("source %s is of no product", key)
		}
		if other := texts[text]; other != "" {
			t.Errorf("sources %s and %s are one", key, other)
		}
		texts[text] = key
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file[:2000], sourcesFile)
	f.Add(strings.Join(columns, ",")+"\namd,x,,4096,xgmi=50,,,,mig:1g*7=1/2,fp16=1,s;@page\n", someSources)
	f.Add(strings.Join(columns, ",")+"\nnvidia,x,,,nv:4=900,,10de:0001,,,fp16=1 int8=2,@page\n", someSources)
	f.Fuzz(func(t *testing.T, text, sources string) {
		products, err := parse(text, sources)
		if err != nil {
			return
		}
		index(products)
		for _, p := range products {
			if len(p.Sources) == 0 || p.Vendor == "" || p.Model == "" || check(p) != nil {
				t.Errorf("product %+v", p)
			}
			if p.Link == "" && (p.LinkGen != 0 || p.LinkGBps != 0) {
				t.Errorf("%s has a link without a kind", p.Model)
			}
		}
	})
}
