package ascend_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/ascend"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/internal/accel"
)

func parse(t *testing.T, file string) brand.Reading {
	t.Helper()
	return ascend.Parse(brandtest.Recorded(t, file))
}

// chips writes the lines of a table, with % where a value differs from chip to chip.
func chips(format string, rows ...[]any) []string {
	var lines []string
	for _, row := range rows {
		lines = append(lines, fmt.Sprintf(format, row...))
	}
	return lines
}

// four is the 16 chips of a host with four boards.
func four() []string {
	bus := strings.Fields("01 02 03 04 0a 0b 0c 0d 81 82 83 84 8b 8c 8d 8e")
	heat := []int{42, 43, 42, 42, 48, 46, 46, 45, 45, 44, 43, 47, 47, 47, 47, 47}
	var lines []string
	for i := range bus {
		used := 2621
		if i == 1 {
			used = 2703
		}
		lines = append(lines, fmt.Sprintf("%d 310 0000:%s:00.0 part=%d %d/8192MiB 0%% %dC 12.8/?W", i, bus[i], i%4, used, heat[i]))
	}
	return lines
}

// dies is the 16 dies of eight boards, of which only the first of each knows the board's power.
func dies() []string {
	power := strings.Fields("161.8 167.2 159.7 161.4 163.9 170.9 164.7 169")
	used := []int{3122, 2891, 3124, 2888, 3117, 2885, 3109, 2890, 3113, 2876, 3106, 2888, 3108, 2885, 3120, 2879}
	bus := strings.Fields("9d 9f 99 9b 95 97 91 93 8d 8f 89 8b 85 87 81 83")
	heat := []int{36, 36, 36, 36, 37, 36, 36, 36, 37, 36, 36, 36, 38, 37, 37, 38}
	var lines []string
	for i := range used {
		watts := "?"
		if i%2 == 0 {
			watts = power[i/2]
		}
		lines = append(lines, fmt.Sprintf("%d Ascend910 0000:%s:00.0 part=%d %d/65536MiB 0%% %dC %s/?W", i, bus[i], i%2, used[i], heat[i], watts))
	}
	return lines
}

func TestParse_RecordedTables(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want   []string
		facts  map[string]string // of the first chip
		driver string
		listed bool
	}{
		"info-310-atlas800-20.2.0.txt": {
			want:  chips("%[1]d 310 0000:%[2]s:00.0 part=%[1]d 2703/8192MiB 0%% %[3]dC 12.8/?W", []any{0, "da", 56}, []any{1, "dc", 57}, []any{2, "dd", 57}, []any{3, "db", 55}),
			facts: map[string]string{"npu": "215", "health": "OK"}, driver: "20.2.0",
		},
		"info-310-atlas800-21.0.4.txt": {
			want:  chips("%d 310 0000:%s:00.0 part=%d %d/8192MiB 0%% %dC 12.8/?W", []any{3, "89", 0, 2703, 73}, []any{4, "8a", 1, 2867, 74}, []any{5, "8b", 2, 2867, 70}, []any{6, "8c", 3, 2867, 65}),
			facts: map[string]string{"npu": "6"}, driver: "21.0.4.B030",
		},
		"info-310-four-cards-21.0.3.1.txt": {want: four(), facts: map[string]string{"npu": "1"}, driver: "21.0.3.1"},
		"info-910a-atlas800-22.0.3.1.txt": {
			want: chips("%d 910A 0000:%s:00.0 part=0 0/32768MiB 0%% %dC %s/?W",
				[]any{0, "61", 43, "67.2"}, []any{1, "db", 38, "63.3"}, []any{2, "b2", 34, "64.8"}, []any{3, "3e", 42, "191.7"},
				[]any{4, "60", 44, "66.4"}, []any{5, "da", 33, "62.7"}, []any{6, "b1", 35, "64.5"}, []any{7, "3d", 40, "191.4"}),
			facts: map[string]string{"ddr": "1867/15077", "generation": "first"}, driver: "22.0.3.1",
		},
		"info-910b2c-23.0.3.txt": {
			want:  chips("%d 910B2C 0000:%s:00.0 part=0 %d/65536MiB 0%% 53C %s/?W", []any{0, "5a", 3317, "89.9"}, []any{1, "29", 3316, "93.8"}),
			facts: map[string]string{"generation": ""}, driver: "23.0.3", listed: true,
		},
		"info-910b4-1-25.2.0-masked-bus.txt": {
			want: []string{"0 910B4-1 ? part=0 3197/65536MiB 0% 33C 91.3/?W", "1 910B4-1 ? part=0 3197/65536MiB 0% 32C 88.1/?W"}, driver: "25.2.0",
		},
		"info-910c-dual-die-25.2.1.txt": {want: dies(), driver: "25.2.1", listed: true},
		"info-310p3-25.5.1.txt": {
			want:  []string{"0 310P3 0000:81:00.0 part=0 1848/21525MiB 0% 37C ?/?W", "1 310P3 0000:85:00.0 part=0 1849/21525MiB 0% 40C ?/?W"},
			facts: map[string]string{"npu": "4"}, driver: "25.5.1",
		},
		"info-310p3-duo-all-dash-25.5.1.txt": {
			want: chips("%d 310P3 0000:%s:00.0 part=%d %d/%dMiB 0%% %dC ?/?W",
				[]any{0, "01", 0, 1448, 44278, 49}, []any{1, "01", 1, 1511, 43693, 45}, []any{2, "02", 0, 1384, 44278, 46}, []any{3, "02", 1, 1572, 43693, 46},
				[]any{4, "81", 0, 1863, 44278, 47}, []any{5, "81", 1, 1105, 43693, 48}, []any{6, "82", 0, 1694, 44278, 48}, []any{7, "82", 1, 1269, 43693, 46}),
			driver: "25.5.1",
		},
		"info-310p3-npu-id-224.txt": {
			want: []string{"0 310P3 0000:04:00.0 part=0 1263/44280MiB 0% 71C ?/?W"}, facts: map[string]string{"npu": "224"}, driver: "25.2.3",
		},
		"info-910a-1.9.3.txt": {
			want: chips("%d 910A 0000:%s:00.0 part=0 0/32768MiB 0%% %dC %s/?W",
				[]any{4, "c2", 30, "67.2"}, []any{5, "82", 25, "63.8"}, []any{6, "42", 27, "67.1"}, []any{7, "02", 30, "65.5"}),
			facts: map[string]string{"ddr": "303/15171"}, driver: "21.0.rc1",
		},
		"info-910b2c-23.0.rc3.txt": {
			want:   chips("%d 910B2C 0000:%s:00.0 part=0 4302/65536MiB 0%% %dC 83.4/?W", []any{0, "5a", 35}, []any{1, "29", 37}),
			driver: "23.0.rc3", listed: true,
		},
		"info-910b2c-25.5.2-three-of-sixteen.txt": {
			want: chips("%d 910B2C 0000:%s:00.0 part=0 %d/65536MiB 0%% %dC %s/?W",
				[]any{0, "66", 3410, 41, "93.9"}, []any{1, "19", 3404, 43, "96"}, []any{15, "d0", 3401, 41, "96"}),
			driver: "25.5.2", listed: true,
		},
		"info-first-generation-named-910b-24.1.0.txt": {
			want: chips("%d 910B 0000:%s:00.0 part=0 %d/32768MiB 0%% %dC %s/?W",
				[]any{0, "c1", 1365, 34, "70"}, []any{1, "81", 4, 34, "66.9"}, []any{2, "41", 4, 34, "69.8"}, []any{3, "01", 3, 33, "67.2"},
				[]any{4, "c2", 3, 33, "68.9"}, []any{5, "82", 5, 34, "66.3"}, []any{6, "42", 5, 34, "70.1"}, []any{7, "02", 4, 33, "65.6"}),
			facts: map[string]string{"generation": "first", "ddr": "1197/13553"}, driver: "24.1.0",
		},
	}
	for file, tc := range cases {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := parse(t, file)
			brandtest.Want(t, r, tc.want...)
			brandtest.WantFacts(t, r.Cards[0].Facts, tc.facts)
			if r.Driver != tc.driver || r.ProcessesKnown != tc.listed {
				t.Errorf("driver %q, processes known %v", r.Driver, r.ProcessesKnown)
			}
			for _, c := range r.Cards {
				if len(c.Processes) != 0 {
					t.Errorf("processes %v", c.Processes)
				}
			}
		})
	}
	if r := parse(t, "info-910a-1.9.3.txt"); r.Facts["tool"] != "1.9.3" {
		t.Errorf("the tool's version is not the driver's: %v", r.Facts)
	}
	// Other facts of every chip, in the order of the tool.
	for file, want := range map[string]map[string]string{
		"info-310-atlas800-20.2.0.txt":                {"npu": "215 215 215 215", "chip": "0 1 2 3", "health": "OK OK OK OK"},
		"info-310-atlas800-21.0.4.txt":                {"npu": "6 6 6 6", "chip": "0 1 2 3"},
		"info-310-four-cards-21.0.3.1.txt":            {"npu": "1 1 1 1 3 3 3 3 4 4 4 4 6 6 6 6"},
		"info-910a-atlas800-22.0.3.1.txt":             {"npu": "0 1 2 3 4 5 6 7", "ddr": "1867/15077 1867/15077 1868/15077 1866/15077 1867/15077 1865/15077 1865/15077 1866/15077", "generation": strings.Repeat("first ", 7) + "first"},
		"info-910c-dual-die-25.2.1.txt":               {"npu": "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7"},
		"info-310p3-25.5.1.txt":                       {"npu": "4 5"},
		"info-310p3-duo-all-dash-25.5.1.txt":          {"npu": "1 1 2 2 4 4 5 5"},
		"info-910a-1.9.3.txt":                         {"npu": "4 5 6 7", "ddr": "303/15171 2123/15171 1061/15171 2563/15078"},
		"info-910b2c-25.5.2-three-of-sixteen.txt":     {"npu": "0 1 15"},
		"info-m-310-atlas800-20.2.0.txt":              {"npu": "215 215 215 215"},
		"info-m-310-atlas800-21.0.4.txt":              {"npu": "6 6 6 6"},
		"info-m-910b.txt":                             {"npu": "0 1 2 3 4 5 6 7", "chip": "0 0 0 0 0 0 0 0"},
		"info-common-310p-two-chips.txt":              {"npu": "1 1", "chip": "0 1", "hbm_rate": " ", "controller_power": "45.2 45.2"},
		"info-first-generation-named-910b-24.1.0.txt": {"npu": "0 1 2 3 4 5 6 7", "generation": strings.Repeat("first ", 7) + "first"},
	} {
		got := map[string]string{}
		for name := range want {
			var values []string
			for _, c := range parse(t, file).Cards {
				values = append(values, c.Facts[name])
			}
			got[name] = strings.Join(values, " ")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
	totals := map[int]string{0: "1197/13553", 1: "2411/15665", 3: "2472/15567"}
	for i, want := range totals {
		brandtest.WantFacts(t, parse(t, "info-first-generation-named-910b-24.1.0.txt").Cards[i].Facts, map[string]string{"ddr": want})
	}
}

// The tool does not tell the number of what it made: the chips are listed again. The plain name 910B is no 910B1 to 910B4.
func TestSamples_Remarks(t *testing.T) {
	t.Parallel()
	if made := brandtest.Recorded(t, "set-create-vnpu-ok.txt"); len(ascend.ParseVNPU(made).Instances) != 0 || len(ascend.Parse(made).Cards) != 0 {
		t.Error("the answer to create tells an instance")
	}
	d := detector(t.TempDir(), tool(t, map[string]string{"info": "info-first-generation-named-910b-24.1.0.txt"}))
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	for _, c := range cards {
		if c.Model != "910B" || len(c.Rounding) != 0 || len(c.Modes) != 0 {
			t.Errorf("card %+v", c)
		}
	}
}

func TestParse_RecordedPages(t *testing.T) {
	t.Parallel()
	brandtest.Want(t, parse(t, "info-m-310-atlas800-20.2.0.txt"),
		chips("%d MiniD ? part=%[1]d ?/?MiB ?%% ?C ?/?W", []any{0}, []any{1}, []any{2}, []any{3})...)
	brandtest.Want(t, parse(t, "info-m-310-atlas800-21.0.4.txt"),
		chips("%d MiniD ? part=%[1]d ?/?MiB ?%% ?C ?/?W", []any{0}, []any{1}, []any{2}, []any{3})...)
	m := parse(t, "info-m-910b.txt")
	brandtest.Want(t, m, chips("%d Ascend xxx ? part=0 ?/?MiB ?%% ?C ?/?W", []any{0}, []any{1}, []any{2}, []any{3}, []any{4}, []any{5}, []any{6}, []any{7})...)
	brandtest.WantFacts(t, m.Cards[7].Facts, map[string]string{"npu": "7", "chip": "0"})

	common := parse(t, "info-common-910b.txt")
	brandtest.Want(t, common, "? ? ? part=0 ?/?MiB 0% 46C 69/?W")
	brandtest.WantFacts(t, common.Cards[0].Facts, map[string]string{"npu": "0", "memory_rate": "6", "hbm_rate": "0", "cores": "32"})
	duo := parse(t, "info-common-310p-two-chips.txt")
	brandtest.Want(t, duo, "? ? ? part=0 ?/?MiB 0% 60C ?/?W", "? ? ? part=1 ?/?MiB 0% 59C ?/?W")
	brandtest.WantFacts(t, duo.Cards[1].Facts, map[string]string{"npu": "1", "hbm_rate": "", "controller_power": "45.2"})
	usages := parse(t, "info-usages-910b.txt")
	brandtest.Want(t, usages, "? ? ? part=0 ?/32768MiB 0% ?C ?/?W")
	brandtest.WantFacts(t, usages.Cards[0].Facts, map[string]string{"ddr": "15171", "ddr_rate": "3", "hbm_rate": "0"})
	board := parse(t, "info-board-910b2c.txt")
	brandtest.Want(t, board, "? ? 0000:66:00.0 ?/?MiB ?% ?C ?/?W")
	brandtest.WantFacts(t, board.Cards[0].Facts, map[string]string{"product": "IT21HMDB02-B2", "firmware": "7.8.0.7.220", "model": "", "serial": "100000000001"})

	if r := parse(t, "error-dcmi-8005.txt"); r.Trouble == "" || len(r.Cards) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestParseVNPU_Recorded(t *testing.T) {
	t.Parallel()
	want := ascend.Templates{
		Free:      map[string]int{"AICORE": 4, "Memory": 21, "AICPU": 3, "VPC": 6, "VENC": 1, "VDEC": 6, "JPEGD": 8, "JPEGE": 4},
		Total:     map[string]int{"AICORE": 8, "Memory": 42, "AICPU": 7, "VPC": 12, "VENC": 3, "VDEC": 12, "JPEGD": 16, "JPEGE": 8},
		Instances: []ascend.VNPU{{ID: 212, Status: "0", Template: "vir04"}},
	}
	if diff := cmp.Diff(want, ascend.ParseVNPU(brandtest.Recorded(t, "info-vnpu-300i-duo.txt"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What can be divided and is: a chip with a virtual NPU is withdrawn for it, its neighbour on the same address is not.
func TestDetect_VirtualNPUs(t *testing.T) {
	t.Parallel()
	const none, one = "info -t info-vnpu -i 1 -c 0", "info -t info-vnpu -i 1 -c 1"
	for name, tc := range map[string]struct {
		templates, source, rule string
	}{
		"the tool lists its templates": {"written-template-info.txt", "cli", "vnpu:parts=8,vir01=3072/1,vir02=6144/2,vir02_1c=6144/2,vir04=12288/4"},
		"as they are published":        {"", "catalogue", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			free := strings.Replace(brandtest.Recorded(t, "info-vnpu-300i-duo.txt"), "212      |", "", 1)
			answers := map[string]brandtest.Answer{
				"info": {Text: brandtest.Recorded(t, "info-310p3-duo-all-dash-25.5.1.txt")},
				none:   {Text: free}, one: {Text: brandtest.Recorded(t, "info-vnpu-300i-duo.txt")},
			}
			if tc.templates != "" {
				answers["info -t template-info -i 1"] = brandtest.Answer{Text: brandtest.Recorded(t, tc.templates)}
			}
			d := detector(t.TempDir(), brandtest.Tool(t, "npu-smi", answers))
			detectortest.Run(t, d)
			cards, err := d.Detect(context.Background())
			if err != nil || len(cards) != 9 {
				t.Fatalf("%d cards, %v", len(cards), err)
			}
			chip, board, part := cards[0], cards[1], cards[8]
			if !slices.Equal(chip.Modes, []string{"vnpu"}) || chip.Form != accel.Whole || accel.FormatRounding(chip.Rounding) != tc.rule {
				t.Errorf("chip %+v", chip)
			}
			if board.Form != accel.Divided || board.UUID != "NPU-0000:01:00.0-1" || !board.Health.OK || *board.MemoryMiB != 43693 {
				t.Errorf("divided chip %+v", board)
			}
			want := accel.Card{
				Vendor: accel.Ascend, Model: "310P3 vir04", RawName: "310P3 vir04", UUID: "NPU-0000:01:00.0-1-vnpu0", Parent: board.UUID, Index: 212,
				PCIAddress: board.PCIAddress, MemoryMiB: part.MemoryMiB, DriverVersion: board.DriverVersion, Form: accel.Partition,
				Health: accel.Health{OK: true}, Sources: map[string]string{"model": "cli", "pci_bus_id": "cli", "driver_version": "cli", "memory": tc.source},
			}
			if diff := cmp.Diff(want, part); diff != "" || *part.MemoryMiB != 12288 {
				t.Errorf("virtual NPU (-want +got):\n%s", diff)
			}
			if nodes := d.Nodes(part); !slices.Equal(nodes, []string{"/dev/vdavinci212"}) {
				t.Errorf("nodes %v", nodes)
			}
			if cards[2].Modes != nil {
				t.Errorf("a chip of which the tool says nothing has the modes %v", cards[2].Modes)
			}
		})
	}
}

func TestParse_UnknownForThatFieldAlone(t *testing.T) {
	t.Parallel()
	r := ascend.Parse(`[WARNING] driver log is full
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | Alarm         | -           NA                0    / 0             |
| 0     0                   | N/A           | NA          0    / 0          NA   / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 90.1        40                0    / 0             |
| 0     1                   | 0000:5A:00.0  | 12          0    / 0          3197 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 4711          | python3                  | 3000                    |
| 1       0                 | 4712          | python3                  | 12                      |
+===========================+===============+====================================================+
`)
	brandtest.Want(t, r, "0 910B3 ? part=0 ?/65536MiB ?% ?C ?/?W dead: npu-smi reports the health Alarm", "1 910B3 0000:5a:00.0 part=0 3197/65536MiB 12% 40C 90.1/?W")
	if p := r.Cards[1].Processes; len(p) != 2 || p[1].PID != 4712 || p[0].Name != "python3" || *p[0].MemoryMiB != 3000 {
		t.Errorf("processes %+v", p)
	}
	for _, out := range []string{"", "npu-smi: command failed", "NPU ID : 0\n"} {
		brandtest.Want(t, ascend.Parse(out))
	}
}

func tool(t *testing.T, answers map[string]string) string {
	t.Helper()
	all := map[string]brandtest.Answer{}
	for args, file := range answers {
		all[args] = brandtest.Answer{Text: brandtest.Recorded(t, file)}
	}
	return brandtest.Tool(t, "npu-smi", all)
}

func detector(root, tool string) *brand.Detector {
	return brand.New(ascend.Spec(), brand.Config{Root: root, Tool: tool}, hclog.NewNullLogger())
}

func TestDetect(t *testing.T) {
	t.Parallel()
	// Two chips of a board share one address.
	duo := detector(t.TempDir(), tool(t, map[string]string{"info": "info-310p3-duo-all-dash-25.5.1.txt"}))
	cards := brandtest.WantCards(t, duo,
		"0 ascend/gpu/310P3 NPU-0000:01:00.0-0 44278 ok", "1 ascend/gpu/310P3 NPU-0000:01:00.0-1 43693 ok",
		"2 ascend/gpu/310P3 NPU-0000:02:00.0-0 44278 ok", "3 ascend/gpu/310P3 NPU-0000:02:00.0-1 43693 ok",
		"4 ascend/gpu/310P3 NPU-0000:81:00.0-0 44278 ok", "5 ascend/gpu/310P3 NPU-0000:81:00.0-1 43693 ok",
		"6 ascend/gpu/310P3 NPU-0000:82:00.0-0 44278 ok", "7 ascend/gpu/310P3 NPU-0000:82:00.0-1 43693 ok")
	if diff := cmp.Diff([]string{"/dev/davinci5"}, duo.Nodes(cards[5])); diff != "" {
		t.Error(diff)
	}
	// The address is masked: the number of the device is the last resort.
	brandtest.WantCards(t, detector(t.TempDir(), tool(t, map[string]string{"info": "info-910b4-1-25.2.0-masked-bus.txt"})),
		"0 ascend/gpu/910B4-1 INDEX-0 65536 ok", "1 ascend/gpu/910B4-1 INDEX-1 65536 ok")
	// A table that cannot be read: the pages of the board say nearly as much.
	pages := detector(t.TempDir(), tool(t, map[string]string{
		"info -m": "info-m-910b.txt", "info -t usages -i 0": "info-usages-910b.txt", "info -t common -i 0": "info-common-910b.txt", "info -t board -i 0": "info-board-910b2c.txt",
	}))
	found, err := pages.Detect(context.Background())
	if err != nil || len(found) != 8 || found[0].UUID != "NPU-0000:66:00.0-0" || *found[0].MemoryMiB != 32768 || found[1].UUID != "INDEX-1" {
		t.Fatalf("%v %+v", err, found)
	}
	samples, err := pages.Sample(context.Background(), found)
	if s := samples["NPU-0000:66:00.0-0"]; err != nil || *s.PowerW != 69 || *s.TemperatureC != 46 || *s.UtilizationPct != 0 {
		t.Errorf("sample %+v %v", s, err)
	}
	b2c := detector(t.TempDir(), tool(t, map[string]string{"info": "info-910b2c-23.0.3.txt"}))
	found, err = b2c.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	processes, err := b2c.Processes(context.Background(), found)
	if diff := cmp.Diff(map[string][]int{"NPU-0000:5a:00.0-0": {}, "NPU-0000:29:00.0-0": {}}, processes); diff != "" || err != nil {
		t.Errorf("processes %v %s", err, diff)
	}
}

func TestDetect_DriverOutOfReach(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	brandtest.Bus(t, root, "0000:18:00.0", "19e5", "d802", "devdrv_device_driver", "20")
	brandtest.Bus(t, root, "0000:02:00.0", "19e5", "1711", "hibmc-drm", "01") // the management controller's graphics
	brandtest.Files(t, root, map[string]string{"usr/local/Ascend/driver/version.info": "Version=25.5.2\nascendhal_version=7.35"})
	cards := brandtest.WantCards(t, detector(root, tool(t, map[string]string{"info": "error-dcmi-8005.txt"})),
		"-1 ascend/gpu/unknown PCI-0000:18:00.0 ? npu-smi: the driver is not initialised, or this process may not use it: run the agent as root or in the group HwHiAiUser")
	if cards[0].DriverVersion != "25.5.2" || cards[0].Sources["driver_version"] != "sysfs" {
		t.Errorf("card %+v", cards[0])
	}
	if cards, err := detector(t.TempDir(), tool(t, map[string]string{"info": "error-dcmi-8005.txt"})).Detect(context.Background()); err == nil {
		t.Errorf("cards %v where it cannot be told", cards)
	}
}

func TestDetect_HangingTool(t *testing.T) {
	t.Parallel()
	path := brandtest.Tool(t, "npu-smi", map[string]brandtest.Answer{"info": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := detector(t.TempDir(), path).Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", cards)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"info-310p3-duo-all-dash-25.5.1.txt", "info-910c-dual-die-25.2.1.txt", "info-910a-1.9.3.txt"} {
		detectortest.Run(t, detector(t.TempDir(), tool(t, map[string]string{"info": file})))
	}
}

func FuzzParse(f *testing.F) { brandtest.Fuzz(f, ascend.Spec(), ascend.Parse) }

func FuzzParseVNPU(f *testing.F) {
	f.Add(brandtest.Recorded(f, "info-vnpu-300i-duo.txt"))
	f.Add(brandtest.Recorded(f, "written-template-info.txt"))
	f.Fuzz(func(t *testing.T, out string) {
		for kind, free := range ascend.ParseVNPU(out).Free {
			if free < 0 || kind == "" {
				t.Errorf("%d of %q", free, kind)
			}
		}
		sizes := ascend.Sizes(out)
		rules := []accel.Rounding{{Mode: accel.ModeVNPU, Parts: 1024, Templates: sizes}}
		if _, err := accel.ParseRounding(accel.FormatRounding(rules)); err != nil && len(sizes) <= 64 {
			t.Errorf("%v: %v", sizes, err)
		}
	})
}

// Not parallel: it counts what the process allocates.
func TestParse_Frugal(t *testing.T) { brandtest.Frugal(t, ascend.Parse) }

func BenchmarkParse_OneMiB(b *testing.B) { brandtest.Benchmark(b, ascend.Parse) }

func TestParse_TheOtherNumbers(t *testing.T) {
	t.Parallel()
	brandtest.WantMore(t, ascend.Parse, map[string][]string{
		"info-common-910b.txt":   {"ClockMHz=1000"},
		"info-usages-910b.txt":   {"MemoryUtilizationPct=0"},
		"info-910b2c-23.0.3.txt": {"", ""},
	})
}

// The text is written after what public reports tell of the tool.
func TestLinks_ByTheTool(t *testing.T) {
	t.Parallel()
	brandtest.WantLink(t, ascend.Spec(), "info -t topo", "NPU0 NPU1 CPU Affinity\nNPU0 X HCCS 0-23\nNPU1 HCCS X 0-23\n", "NPU0", "NPU1", "hccs")
}

func TestParse_WhatSaysNothingIsUnknownAlone(t *testing.T) {
	t.Parallel()
	brandtest.Unknowns(t, ascend.Parse, func(c brand.Card) []string { return []string{c.Facts["npu"]} })
}

func TestParse_BlanksAndLinesBefore(t *testing.T) {
	t.Parallel()
	brandtest.LinesBefore(t, ascend.Parse)
	brandtest.Blanks(t, ascend.Parse, func(c brand.Card) []string { return []string{c.Facts["npu"]} }, map[string]string{
		"info-310*.txt":    brandtest.SharedCell,
		"info-910*.txt":    brandtest.SharedCell,
		"info-first-*.txt": brandtest.SharedCell,
	})
}
