package toolout_test

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

func TestText_UnknownIsEmpty(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", " ", "-", "N/A", "NA", "n/a", "ERR!", "[N/A]", "[Not Supported]", "[Unknown Error]", "Unknown Error", "xxxxx", "<redacted>", "unknown", "None", `"N/A"`, "AMDSMI_STATUS_FILE_ERROR - x"} {
		if got := toolout.Text(s); got != "" {
			t.Errorf("Text(%q) = %q", s, got)
		}
	}
	for s, want := range map[string]string{" P800 OAM ": "P800 OAM", `"P800 OAM"`: "P800 OAM", "0": "0", "DCU xxxx": "DCU xxxx"} {
		if got := toolout.Text(s); got != want {
			t.Errorf("Text(%q) = %q", s, got)
		}
	}
}

func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

func TestValues_WithTheirUnits(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ got, want any }{
		"watts":                         {value(toolout.Watts("34.61 W")), 34.61},
		"milliwatts":                    {value(toolout.Watts("90440 mW")), 90.44},
		"bare milliwatts":               {value(toolout.Milliwatts("38000")), 38.0},
		"bare watts":                    {value(toolout.Watts("89.9")), 89.9},
		"no power":                      {value(toolout.Watts("N/A")), nil},
		"an absurd power":               {value(toolout.Watts("65535")), nil},
		"a percentage as power":         {value(toolout.Watts("5%")), nil},
		"a sentinel of 32 bits":         {value(toolout.Watts("4294967295")), nil},
		"a sentinel of 64 bits":         {value(toolout.MiB("18446744073709551615", "B")), nil},
		"minus one":                     {value(toolout.Celsius("-1")), nil},
		"celsius":                       {value(toolout.Celsius("38C")), 38.0},
		"a degree sign":                 {value(toolout.Celsius("48.0°C")), 48.0},
		"a small letter":                {value(toolout.Celsius("30.0c")), 30.0},
		"frost":                         {value(toolout.Celsius("-5 C")), -5.0},
		"an absurd temperature":         {value(toolout.Celsius("65535")), nil},
		"percent":                       {value(toolout.Percent("98%")), 98.0},
		"more than all":                 {value(toolout.Percent("101%")), nil},
		"bytes":                         {value(toolout.MiB("34342961152", "B")), uint64(32752)},
		"bytes in words":                {value(toolout.MiB("4294967296 bytes", "")), uint64(4096)},
		"MB is 2^20 in tools":           {value(toolout.MiB("65536 MB", "")), uint64(65536)},
		"kibibytes":                     {value(toolout.MiB("2048 KiB", "")), uint64(2)},
		"gibibytes":                     {value(toolout.MiB("1.5GiB", "")), uint64(1536)},
		"a size without a unit":         {value(toolout.MiB("1024", "")), nil},
		"a size of a strange unit":      {value(toolout.MiB("1024 pages", "MiB")), nil},
		"more memory than a card holds": {value(toolout.MiB("99999999999 GiB", "")), nil},
		"a clock":                       {value(toolout.Megahertz("1920 MHz")), 1920.0},
		"a clock in brackets":           {value(toolout.Megahertz("(1402Mhz)")), 1402.0},
		"a fast clock":                  {value(toolout.Megahertz("1.5 GHz")), 1500.0},
		"a clock of a strange unit":     {value(toolout.Megahertz("1402 MB")), nil},
		"a count":                       {value(toolout.Count("0")), 0.0},
		"a count that is none":          {value(toolout.Count("N/A")), nil},
		"a count of all ones":           {value(toolout.Count("18446744073709551615")), nil},
		"yes":                           {value(toolout.YesNo("Yes")), true},
		"not active":                    {value(toolout.YesNo(" Not Active")), false},
		"neither yes nor no":            {value(toolout.YesNo("N/A")), nil},
		"half a thing":                  {value(toolout.Count("0.5")), nil},
		"a share as a count":            {value(toolout.Count("3 %")), nil},
		"an index":                      {value(toolout.Whole(" 7 ")), 7},
		"no index":                      {value(toolout.Whole("7a")), nil},
	}
	for name, tc := range cases {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]string{
		"0 / 32768": {"0", "32768"}, "826/65536MiB": {"826MiB", "65536MiB"}, "85W/400W": {"85W", "400W"},
		"[N/A] / 250W": {"[N/A]", "250W"}, "826/N/A MiB": {"826MiB", "N/A MiB"}, "826/ERR!MiB": {"826MiB", "ERR!MiB"}, "5/[Not Supported]": {"5", "[Not Supported]"},
		"N/A/N/A": {"N/A", "N/A"}, "N/A / N/A": {"N/A", "N/A"}, "N/A": {"N/A", ""}, "": {"", ""},
	} {
		used, total := toolout.Usage(in)
		if diff := cmp.Diff(want, [2]string{used, total}); diff != "" {
			t.Errorf("Usage(%q): %s", in, diff)
		}
	}
}

func TestPCI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"00000000:C3:00.0": "0000:c3:00.0", "0001:01:00.0": "0001:01:00.0", "00:09:00.0": "0000:09:00.0", "16:00.0": "0000:16:00.0",
		"00010000:E1:00.0": "10000:e1:00.0", "0000:xx:00.0": "", "N/A": "", "": "", "0000:66:00": "",
	} {
		if got := toolout.PCI(in); got != want {
			t.Errorf("PCI(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestBoxed(t *testing.T) {
	t.Parallel()
	out := `warning before the table
+---------------------------+--------------+
| NPU   Name                | Power(W)   Temp(C)  |
| Chip                      | Memory-Usage(MB)  HBM-Usage(MB) |
+===========================+==============+
| 0     Long Name 910       | 91.3       33    |
| 0                         | 0    / 0          3197 / 65536 |
+===========================+==============+
| 1     910                 | 33    |
| 0                         | 3 / 4 |
| a line too many           | x |
+---------------------------+--------------+
| NPU     Chip              | Process id    |
+===========================+==============+
| No running processes found in NPU 0          |
`
	want := []toolout.Record{
		{"NPU": "0", "Name": "Long Name 910", "Power(W)": "91.3", "Temp(C)": "33", "Chip": "0", "Memory-Usage(MB)": "0/0", "HBM-Usage(MB)": "3197/65536"},
		// Which of two values is missing cannot be told: both are unknown.
		{"NPU": "1", "Name": "910", "Power(W)": "", "Temp(C)": "", "Chip": "0", "Memory-Usage(MB)": "", "HBM-Usage(MB)": ""},
	}
	if diff := cmp.Diff(want, collect(toolout.Boxed(out, "NPU"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"0%   32C         30 W/ 150 W":   {"0%", "32C", "30W/150W"},
		"0     /   MLU370-X4    v1.1.6":  {"0", "/", "MLU370-X4", "v1.1.6"},
		"0 MiB/ 23308 MiB":               {"0MiB/23308MiB"},
		"N/A   33C  P0    N/A / N/A":     {"N/A", "33C", "P0", "N/A/N/A"},
		"10240 MiB/1048576 MiB":          {"10240MiB/1048576MiB"},
		"0    / 0          3197 / 65536": {"0/0", "3197/65536"},
		"00000000:52:00.0 N/A":           {"00000000:52:00.0", "N/A"},
		"826/65536 MiB":                  {"826/65536MiB"},
		"0      / 970":                   {"0/970"},
		"248 W     55 °C    283 MB":      {"248W", "55°C", "283MB"},
		"On          v4.20.11":           {"On", "v4.20.11"},
		"6 12.8":                         {"6", "12.8"},
		"[Not Supported] 35C P0":         {"[Not Supported]", "35C", "P0"},
		"[N/A] / 250W [Unknown Error] x": {"[N/A]/250W", "[Unknown Error]", "x"},
		"[never closed by anybody here":  {"[never", "closed", "by", "anybody", "here"},
		"xxxxx / 250W":                   {"xxxxx/250W"},
	} {
		if diff := cmp.Diff(want, toolout.Values(in)); diff != "" {
			t.Errorf("Values(%q) (-want +got):\n%s", in, diff)
		}
	}
}

func TestAligned(t *testing.T) {
	t.Parallel()
	out := "===== Title =====\nGPU  Temp (DieEdge)  AvgPwr  Fan\n0    39.0c           92.0W   0%\n1    28.0c           N/A     0%  surplus\n====\nWARNING: 7 lines\n"
	want := []toolout.Record{{"GPU": "0", "Temp (DieEdge)": "39.0c", "AvgPwr": "92.0W", "Fan": "0%"}}
	if diff := cmp.Diff(want, collect(toolout.Aligned(out, "GPU"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// collect keeps records, each of which is only valid until the next.
func collect(records iter.Seq[toolout.Record]) []toolout.Record {
	var all []toolout.Record
	for r := range records {
		all = append(all, maps.Clone(r))
	}
	return all
}

func paths(out string) []string {
	var got []string
	for p := range toolout.Pairs(out) {
		if p.Value != "" {
			got = append(got, strings.Join(append(slices.Clone(p.Section), p.Key), "/")+"="+p.Value)
		}
	}
	return got
}

func TestPairs(t *testing.T) {
	t.Parallel()
	indented := "GPU: 0\n    BUS:\n        BDF: 0000:01:00.0\n    DRIVER:\n        VERSION: 6.9\nGPU: 1\n    BUS:\n        BDF: 0001:01:00.0\n"
	want := []string{"GPU=0", "GPU 0/BUS/BDF=0000:01:00.0", "GPU 0/DRIVER/VERSION=6.9", "GPU=1", "GPU 1/BUS/BDF=0001:01:00.0"}
	if diff := cmp.Diff(want, paths(indented)); diff != "" {
		t.Errorf("indented (-want +got):\n%s", diff)
	}
	flat := "GPU0 00000000:01:00.0\nName   :  S90\nUtilization\nMemory :  0%\nClocks\nMemory :  2003MHz\n"
	want = []string{"GPU0 00000000:01:00.0/Name=S90", "Utilization/Memory=0%", "Clocks/Memory=2003MHz"}
	if diff := cmp.Diff(want, paths(flat)); diff != "" {
		t.Errorf("flat (-want +got):\n%s", diff)
	}
}

// A key with a blank value is no title: what follows it stands where it stood.
func TestPairs_BlankValue(t *testing.T) {
	t.Parallel()
	flat := "GPU0 00000000:01:00.0\nName   :\nUtilization\nGpu :\nMemory :  0%\n"
	if diff := cmp.Diff([]string{"Utilization/Memory=0%"}, paths(flat)); diff != "" {
		t.Errorf("flat (-want +got):\n%s", diff)
	}
	indented := "Card 0\n    Memory\n        Total :\n        Used : 1 MiB\n    BUS:\n        BDF: 0000:01:00.0\n"
	want := []string{"Card 0/Memory/Used=1 MiB", "Card 0/BUS/BDF=0000:01:00.0"}
	if diff := cmp.Diff(want, paths(indented)); diff != "" {
		t.Errorf("indented (-want +got):\n%s", diff)
	}
	for p := range toolout.Pairs(indented) {
		if title := p.Key == "Card 0" || p.Key == "Memory" || p.Key == "BUS"; p.Title != title {
			t.Errorf("%+v: a title %v", p, !title)
		}
	}
}

func TestValues_OneSideOfAUsageIsBlank(t *testing.T) {
	t.Parallel()
	for cell, want := range map[string][]string{
		"N/A   47C    P0         / 165W": {"N/A", "47C", "P0", "/165W"}, "/ 24576MiB": {"/24576MiB"}, "50MiB /": {"50MiB/"},
		"50MiB / 24576MiB": {"50MiB/24576MiB"}, "0     /   MLU370-X8    v1.1.6": {"0", "/", "MLU370-X8", "v1.1.6"},
	} {
		if diff := cmp.Diff(want, toolout.Values(cell)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", cell, diff)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	v, ok := toolout.JSON("Permission needed to access required GPU device node(s):\n [not json\n{\"Power Draw \": {\"value\": 550, \"unit\": \"W\"}, \"name\": \"N/A\", \"n\": 7}\nWARNING\n")
	if !ok {
		t.Fatal("the value behind the banner is not found")
	}
	if got := v.Text("power draw"); got != "550 W" {
		t.Errorf("power %q", got)
	}
	if v.Text("name") != "" || v.Text("n") != "7" || v.Text("n", "x") != "" {
		t.Error("unknown, number and path")
	}
	if _, ok := toolout.JSON("No JSON data to report"); ok {
		t.Error("text is read as JSON")
	}
}

// checkJSON compares what is read of a value with what encoding/json reads of it, where that takes it too.
func checkJSON(t *testing.T, out string) {
	t.Helper()
	v, ok := toolout.JSON(out)
	if !ok {
		return
	}
	var want any
	dec := json.NewDecoder(strings.NewReader(string(v)))
	dec.UseNumber()
	if dec.Decode(&want) == nil {
		sameJSON(t, want, v)
	}
}

func sameJSON(t *testing.T, want any, v toolout.Value) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		n := map[string]bool{}
		for key, one := range v.Fields() {
			n[key] = true
			if !v.IsObject() || one == "" {
				t.Errorf("field %q of %q is %q", key, v, one)
			}
		}
		if len(n) != len(want) {
			t.Errorf("%d fields of %q, want %d", len(n), v, len(want))
		}
	case []any:
		n := 0
		for one := range v.Items() {
			if n < len(want) {
				sameJSON(t, want[n], one)
			}
			n++
		}
		if n != min(len(want), 1024) || !v.IsList() {
			t.Errorf("%d items of %q, want %d", n, v, len(want))
		}
	case string:
		if got := v.Text(); got != toolout.Text(want) {
			t.Errorf("%q is read as %q", want, got)
		}
	case json.Number:
		if got := v.Text(); got != want.String() {
			t.Errorf("%s is read as %q", want, got)
		}
	}
}

// What is well formed is found, what is not is no value, and neither takes the stack nor the time of a deep one.
func TestJSON_Forms(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]bool{
		`{}`: true, `[]`: true, `[ ]`: true, `[{"a": [1, -2.5e3, true, null, "x\"y"]}, {}]`: true, "{\"a\":\n1}": true, `{"a": 1} behind`: true,
		`[1,]`: false, `{"a"}`: false, `{"a": }`: false, `{a: 1}`: false, `[01]`: false, `[tru]`: false, `["x]`: false, `{"a": 1`: false, "[\"a\nb\"]": false,
		strings.Repeat("[", 1<<16): false, strings.Repeat("[", 60) + strings.Repeat("]", 60): true, `[-]`: false, `[`: false, `[1 2]`: false,
	} {
		if _, ok := toolout.JSON(out); ok != want {
			t.Errorf("%.60q is read %v", out, ok)
		}
		checkJSON(t, out)
	}
}

func FuzzReaders(f *testing.F) {
	f.Add("| GPU  Name | x |\n| 0 a b | c |\n")
	f.Add("GPU  Temp\n0  4\n")
	f.Add("a: b\n  c: d\n\te\n")
	f.Add("{\"a\": [1]}")
	f.Fuzz(func(t *testing.T, out string) {
		for r := range toolout.Boxed(out, "GPU", "NPU") {
			for name := range r {
				if strings.ContainsAny(name, "|\n") {
					t.Errorf("column %q", name)
				}
			}
		}
		collect(toolout.Aligned(out, "GPU", "NPU"))
		paths(out)
		checkJSON(t, out)
		for range toolout.Entries(out) {
		}
		toolout.Processes(out, "", 1)
		collect(toolout.CSV(out, []string{"index"}, "index"))
		toolout.Usage(out)
		toolout.PCI(out)
		if m := toolout.MiB(out, "MiB"); m != nil && *m > 1<<32 {
			t.Errorf("%d MiB", *m)
		}
	})
}

func TestCSV(t *testing.T) {
	t.Parallel()
	out := "warning, something\n0, Disabled, 1\nindex, svi.mode.current, memory.used [MiB]\n1, Enabled, 2\n2, Enabled, [N/A]\n3, short\n"
	want := []toolout.Record{
		{"index": "0", "svi": "Disabled", "used": "1"},
		{"index": "1", "svi.mode.current": "Enabled", "memory.used": "2 MiB"},
		{"index": "2", "svi.mode.current": "Enabled", "memory.used": "[N/A]"},
	}
	if diff := cmp.Diff(want, collect(toolout.CSV(out, []string{"index", "svi", "used"}, "index"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := collect(toolout.CSV("0, Disabled, 1\n", nil, "index")); got != nil {
		t.Errorf("a line without a header is read as %v", got)
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	out := "| 0 1 2 3 |\n| Processes:   |\n|  GPU   PID   Type  Process name   Usage |\n|=====|\n|   0   2874292   C   xpu smi   206 MiB |\n|   3   7   python   12 |\n|  none  |\n| 0 x y z |\n"
	want := []toolout.Process{{Index: 0, PID: 2874292, Name: "xpu smi", Memory: "206MiB"}, {Index: 3, PID: 7, Name: "python", Memory: "12"}}
	got, known := toolout.Processes(out, "Processes:", 1)
	if diff := cmp.Diff(want, got); diff != "" || !known {
		t.Errorf("known %v (-want +got):\n%s", known, diff)
	}
	if got, known := toolout.Processes("| 0 1 2 3 |", "Processes:", 1); known || got != nil {
		t.Errorf("%v, %v without a table", got, known)
	}
}

func TestCSVCells(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"":                           nil,
		" \r\n":                      nil,
		"0, H100 , ,81559 MiB\n":     {"0", "H100", "", "81559 MiB"},
		`"a, b",  "c ""d""" , e,`:    {"a, b", `c "d"`, "e", ""},
		`see "KMD version", instead`: {`see "KMD version"`, "instead"},
		`"never closed, 1`:           {"never closed, 1"},
		`"a"b", c`:                   {`a"b`, "c"},
		`"",""`:                      {"", ""},
	} {
		if diff := cmp.Diff(want, toolout.AppendCSV(nil, in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}
