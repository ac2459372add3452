package nvidia

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// said is what a recording says besides what summary shows.
type said struct {
	limit     string
	uuid      string
	minor     string
	migs      []string          // profile uuid (instance, compute instance, device, used/total, multiprocessors)
	processes []string          // pid, memory, where, instances
	facts     map[string]string // those that are named; an empty one must not be there
	cuda      string
	attached  string
}

func shown[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

func saidOf(r report, want said) said {
	g := r.gpus[0]
	s := said{limit: shown(g.powerOf), uuid: g.uuid, minor: shown(g.minor), cuda: r.cuda, attached: shown(r.attached)}
	for _, m := range g.migs {
		s.migs = append(s.migs, strings.TrimSpace(fmt.Sprintf("%s %s (%s,%s,%d,%s/%s,%s)", m.profile, m.uuid, shown(m.gi), shown(m.ci), m.device, shown(m.memoryUsed), shown(m.memory), shown(m.sms))))
	}
	for _, p := range r.processes {
		s.processes = append(s.processes, strings.TrimSpace(fmt.Sprintf("%d %s %s/%s", p.pid, shown(p.memory), shown(p.gi), shown(p.ci))))
	}
	for name := range want.facts {
		if s.facts == nil {
			s.facts = map[string]string{}
		}
		s.facts[name] = g.facts[name]
	}
	return s
}

// The expected values of SAMPLES.md of the recorded outputs that stand in no other table here.
func TestParse_RecordedBesides(t *testing.T) {
	t.Parallel()
	const zeros = "GPU-00000000-0000-0000-0000-000000000000"
	load := []string{"21180 2296 2/0", "21181 1272 2/0", "21198 7484 2/0"}
	h100 := []string{"(2,0,0,11091/40448,60)", "(3,0,1,17/20096,32)", "(9,0,2,9/9984,16)", "(10,0,3,9/9984,16)"}
	for file, want := range map[string]said{
		"list-h100-mig.txt": {uuid: zeros, migs: []string{
			"3g.40gb MIG-00000000-0000-0000-0000-000000000000 (,,0,/,)", "2g.20gb MIG-00000001-0000-0000-0000-000000000001 (,,1,/,)",
			"1g.10gb MIG-00000002-0000-0000-0000-000000000002 (,,2,/,)", "1g.10gb MIG-00000003-0000-0000-0000-000000000003 (,,3,/,)",
		}},
		"list-a30-mig.txt": {uuid: "GPU-1e44b340-5807-0dbe-62e6-343a6b8b8bcd", migs: []string{
			"2g.12gb MIG-1b8509c0-e60d-502d-8263-d434867998aa (,,0,/,)", "1g.6gb MIG-41b9eab5-8d48-5c52-9f07-82bc59af3901 (,,1,/,)",
			"1g.6gb MIG-55dcd9bd-e6b1-549a-bcb4-0b0496bfee9c (,,2,/,)",
		}},
		"table-h100-mig-load.txt": {limit: "700", cuda: "13.1", migs: h100, processes: load, facts: map[string]string{"ecc": "On", "display_active": "Off"}},
		"query-h100-mig-load.txt": {
			limit: "700", cuda: "13.1", attached: "1", uuid: zeros, minor: "0", migs: h100, processes: load,
			facts: map[string]string{
				"memory.reserved": "479 MiB", "memory.free": "69956 MiB", "utilization.encoder": "", "power.draw.instant": "444.72 W",
				"pci.device_id": "0x233010DE", "display_mode": "", "ecc.mode.current": "Enabled",
			},
		},
		"query-gpu-h100-mig-load.csv": {limit: "700", uuid: zeros, facts: map[string]string{
			"memory.reserved": "479 MiB", "memory.free": "69956 MiB", "compute_cap": "9.0",
		}},
		"table-h100-80gb-idle.txt": {limit: "700", cuda: "13.1"},
		"table-h200-load.txt":      {limit: "700", cuda: "13.1", processes: []string{"10291 2566 /", "10293 1542 /", "10309 28234 /"}, facts: map[string]string{"ecc": "0"}},
		"query-gpu-h200-idle.csv": {limit: "700", uuid: zeros, facts: map[string]string{
			"memory.reserved": "614 MiB", "memory.free": "143158 MiB", // the total is not what is used and what is free
		}},
		"table-rtx4080s-load.txt": {limit: "320", cuda: "13.2", facts: map[string]string{"ecc": "", "display_active": "On"}, processes: []string{
			"2165 25 /", "5021 360 /", "5022 503 /", // of the types C+G and C; those of the type G only draw
		}},
		"query-rtx4080s-load.txt": {
			limit: "320", cuda: "13.2", attached: "1", uuid: zeros, minor: "0", processes: []string{"2165 25 /", "5021 360 /", "5022 503 /"},
			facts: map[string]string{"serial": "", "ecc.mode.current": "", "memory.reserved": "434 MiB", "memory.free": "14470 MiB", "utilization.encoder": "72 %"},
		},
		"query-gpu-rtx4080s-idle.csv":       {limit: "320", uuid: zeros, facts: map[string]string{"serial": "", "ecc.mode.current": ""}},
		"query-gpu-l40s-load.csv":           {limit: "350", uuid: zeros, facts: map[string]string{"ecc.mode.current": "Enabled"}},
		"table-rtx2080s-driver610-idle.txt": {limit: "250", cuda: "13.3"},
		"table-a30-mig-driver535.txt":       {limit: "165", cuda: "12.2", migs: []string{"(2,0,0,25/11968,28)", "(3,0,1,12/5952,14)", "(4,0,2,12/5952,14)"}},
		"table-h100nvl-mig-driver560.txt":   {limit: "400", cuda: "12.6", migs: []string{"(1,0,0,38/47488,60)", "(5,0,1,13/22144,26)", "(13,0,2,13/11008,16)"}},
		"xml-a100-sxm4-v12.xml": {limit: "500", cuda: "12.2", attached: "4", uuid: "GPU-513536b6-7d19-9063-b049-1e69664bb298", minor: "1", migs: []string{
			"(3,0,0,12/19968,14)", "(4,0,1,12/19968,14)", "(5,0,2,12/19968,14)", "(6,0,3,12/19968,14)",
		}},
		"xml-a100-sxm4-mig.xml": {limit: "400", cuda: "11.6", attached: "1", uuid: "GPU-27b94a00-ed54-5c24-b1fd-1054085de32a", minor: "0", migs: []string{"(1,0,0,19/19968,42)", "(2,0,1,19/19968,42)"}},
		"xml-tesla-t4.xml":      {limit: "70", cuda: "11.7", attached: "1", uuid: "GPU-d37e67a5-91dd-3774-a5cb-99096249601a", minor: "0", processes: []string{"5762 1005 /"}}, // the other one, 675, only draws
		"xml-a10g.xml":          {limit: "300", cuda: "11.7", attached: "1", uuid: "GPU-9a9a6c50-2a47-2f51-a902-b82c3b127e94", minor: "0"},                                    // its one process, 725, only draws
		"xml-gtx-1070-ti.xml":   {uuid: "GPU-f9ba66fc-a7f5-94c5-da19-019ef2f9c665"},                                                                                           // no word of the driver, nor of how many cards there are
	} {
		r, ok := parse(recorded(t, file))
		if !ok || len(r.gpus) != 1 {
			t.Errorf("%s: read %d cards, ok %v", file, len(r.gpus), ok)
			continue
		}
		if diff := cmp.Diff(want, saidOf(r, want), cmp.AllowUnexported(said{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// What is in a recording besides one card.
func TestParse_RecordedCounts(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"query-gpu-h100-mig-load.csv": 212, "query-gpu-h200-idle.csv": 212, "query-gpu-rtx4080s-idle.csv": 202, "query-gpu-l40s-load.csv": 202} {
		lines := strings.Split(strings.TrimSpace(recorded(t, file)), "\n")
		if names, cells := (header{}), toolout.AppendCSV(nil, lines[1]); !names.read(toolout.AppendCSV(nil, lines[0])) || len(names) != want || len(cells) != want || len(lines) != 2 {
			t.Errorf("%s: %d names, %d cells, %d lines", file, len(names), len(cells), len(lines))
		}
	}
	apps, _ := parse(recorded(t, "query-compute-apps-h100-mig-load.csv"))
	for i, want := range []uint64{2296, 1272, 7484} { // the UUID is the board's, not the partition's
		if p := apps.processes[i]; *p.memory != want || p.uuid != "GPU-00000000-0000-0000-0000-000000000000" || p.pci != "0000:00:09.0" || p.gi != nil {
			t.Errorf("process %d: %+v", i, p)
		}
	}
	a40, _ := parse(recorded(t, "table-a40-one-gpu-err-driver525.txt"))
	heat, power := []string{"24", "25", "40", "30", "", "23", "22", "21"}, []string{"14", "13", "81", "14", "", "14", "15", "14"}
	for i, g := range a40.gpus {
		limit, ecc, fan := "300", "0", "0"
		if i == 4 {
			limit, ecc, fan = "", "", ""
		}
		got := []string{shown(g.temperature), shown(g.power), shown(g.powerOf), shown(g.more.ECCUncorrected), shown(g.more.FanPct), shown(g.migMode)}
		if diff := cmp.Diff([]string{heat[i], power[i], limit, ecc, fan, ""}, got); diff != "" {
			t.Errorf("A40 %d (-want +got):\n%s", i, diff)
		}
	}
	if *a40.processes[0].memory != 818 || a40.driver != "525.60.13" || !a40.processesKnown {
		t.Errorf("driver %q, processes %+v", a40.driver, a40.processes)
	}
}

// Newer drivers deprecate the word for their version: the kernel mode driver's counts. No card is told of.
func TestParse_Version(t *testing.T) {
	t.Parallel()
	if r, ok := parse(recorded(t, "version-driver610.txt")); ok || r.driver != "610.57.04" || r.cuda != "13.3" || len(r.gpus) != 0 {
		t.Errorf("%+v, %v", r, ok)
	}
	const older = "NVIDIA-SMI version  : 560.35.03\nNVML version        : 560.35\nDRIVER version      : 560.35.03\nCUDA Version        : 12.6\n"
	if r, _ := parse(older); r.driver != "560.35.03" {
		t.Errorf("driver %q", r.driver)
	}
	list := brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"-L": {Text: recorded(t, "list-a30-mig.txt")}, "--version": {Text: recorded(t, "version-driver610.txt")}})
	cards, err := detector(t, list).Detect(context.Background())
	if err != nil || len(cards) != 4 || cards[0].DriverVersion != "610.57.04" {
		t.Errorf("%+v, %v", cards, err)
	}
}

// Rows that were printed without their header tell of their columns no more than index and name. With the header that such a
// call prints otherwise, everything is read, and the line of the other card stays beside it.
func TestParse_RowsUnderTheirHeader(t *testing.T) {
	t.Parallel()
	lost := recorded(t, "query-gpu-lost-beside-good-one.csv")
	r, _ := parse(lost)
	if g := r.gpus[0]; g.power != nil || g.powerOf != nil || r.driver != "" {
		t.Errorf("numbers of columns without a name: %+v", g)
	}
	r, _ = parse(strings.Replace(lost, "\n", "\nindex, name, power.limit [W], enforced.power.limit [W], power.default_limit [W], power.draw [W], driver_version\n", 1))
	good, gone := r.gpus[0], r.gpus[1]
	if *good.index != 1 || *good.power != 34.61 || *good.powerOf != 300 || good.dead != "" || r.driver != "616.92" {
		t.Errorf("good card %+v, driver %q", good, r.driver)
	}
	if gone.pci != "0000:24:00.0" || *gone.index != 0 || gone.dead == "" {
		t.Errorf("lost card %+v", gone)
	}
	failed := "index, name, temperature.gpu, clocks.sm [MHz], clocks.mem [MHz], utilization.gpu [%], utilization.memory [%], pstate, power.limit [W]\n" + recorded(t, "query-gpu-failed-between-good-ones.csv")
	r, _ = parse(failed)
	var got []string
	for _, g := range r.gpus {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", shown(g.index), g.pci, shown(g.temperature), shown(g.utilization), shown(g.powerOf)))
	}
	if diff := cmp.Diff([]string{"0  30 0 350", "2  31 0 350", " 0000:02:00.0   "}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Errors in place of later samples are unknown, never 0, and no call asks the tool to go on by itself.
func TestParse_Loop(t *testing.T) {
	t.Parallel()
	var got []string
	for line := range strings.Lines(recorded(t, "query-gpu-loop-unknown-error.csv")) {
		r := row{header{"utilization.gpu": 0, "utilization.encoder": 1, "utilization.decoder": 2}, toolout.AppendCSV(nil, line)}
		for _, name := range []string{"utilization.gpu", "utilization.encoder", "utilization.decoder"} {
			got = append(got, shown(toolout.Percent(r.get(name))))
		}
	}
	if diff := cmp.Diff([]string{"0", "0", "0", "", "", "", "", "", ""}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tool := brandtest.Install(t, t.TempDir(), "nvidia-smi")
	tool.Play(t, map[string]brandtest.Answer{"": {Text: recorded(t, "table-h200-load.txt")}, "--query*": {Text: recorded(t, "query-gpu-h200-idle.csv")}})
	d := detector(t, tool.Path)
	cards, err := d.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Sample(context.Background(), cards); err != nil {
		t.Fatal(err)
	}
	for _, call := range tool.Calls(t) {
		if slices.ContainsFunc(strings.Fields(call), func(arg string) bool {
			return arg == "-l" || strings.HasPrefix(arg, "-lms") || strings.HasPrefix(arg, "--loop")
		}) {
			t.Errorf("the tool is asked to go on: %s", call)
		}
	}
}

// Whatever the status with which the tool ends, what it printed counts: by its manual page 6 is that a query found nothing, 8
// missing power cables, 9 no driver, 10 an interrupt, 12 no library, 14 a corrupt infoROM, 15 a card off the bus.
func TestDetect_ExitStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{1, 2, 6, 8, 9, 10, 12, 14, 15, 255} {
		failed := brandtest.Answer{Text: recorded(t, "query-gpu-failed-between-good-ones.csv"), Status: status}
		d := detector(t, brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"--query-gpu*": failed}))
		wantCards(t, d, "0 nvidia/gpu/GeForce-RTX-3090 INDEX-0 ? ok", "2 nvidia/gpu/GeForce-RTX-3090 INDEX-2 ? ok", "-1 nvidia/gpu/unknown PCI-0000:02:00.0 ? nvidia-smi: Unknown Error")
		d = detector(t, brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"*": {Text: recorded(t, "error-no-driver.txt"), Status: status}}))
		wantCards(t, d)
		d = detector(t, brandtest.Tool(t, "nvidia-smi", map[string]brandtest.Answer{"*": {Status: status}}))
		if cards, err := d.Detect(context.Background()); err == nil {
			t.Errorf("status %d without a word is read as %d cards", status, len(cards))
		}
	}
}
