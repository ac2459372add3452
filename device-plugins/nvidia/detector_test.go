package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/device/detectortest"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// standIn installs the stand-in for nvidia-smi with a copy of the named files of a box; none named is all of them.
func standIn(t testing.TB, box string, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	tool, err := os.ReadFile("testdata/standin/nvidia-smi")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), tool, 0o755); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join("testdata/standin/boxes", box)
	if len(files) == 0 {
		if err := os.CopyFS(filepath.Join(dir, "box"), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "nvidia-smi")
	}
	if err := os.Mkdir(filepath.Join(dir, "box"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		body, err := os.ReadFile(filepath.Join(from, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "box", f), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "nvidia-smi")
}

func detector(t testing.TB, smi string) *Detector {
	t.Helper()
	return New(Config{Root: t.TempDir(), SMI: smi}, hclog.NewNullLogger())
}

// show is one line for each card: device id, identity, memory, health.
func show(cards []accel.Card) []string {
	out := []string{}
	for _, c := range cards {
		memory := "?"
		if c.MemoryMiB != nil {
			memory = fmt.Sprint(*c.MemoryMiB)
		}
		state := "ok"
		if !c.Health.OK {
			state = c.Health.Reason
		}
		out = append(out, fmt.Sprintf("%d %s %s %s %s", c.Index, c.DeviceID(), c.UUID, memory, state))
	}
	return out
}

func wantCards(t *testing.T, d *Detector, want ...string) []accel.Card {
	t.Helper()
	cards, err := d.Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append([]string{}, want...), show(cards)); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
	return cards
}

func TestDetect_Boxes(t *testing.T) {
	t.Parallel()
	h100 := []string{
		"0 nvidia/card/H100-80GB-HBM3-68e31b94 GPU-00000000-0000-0000-0000-000000000000 81559 ok",
		"0 nvidia/gpu/H100-80GB-HBM3 MIG 3g.40gb MIG-00000000-0000-0000-0000-000000000000 40448 ok",
		"0 nvidia/gpu/H100-80GB-HBM3 MIG 2g.20gb MIG-00000001-0000-0000-0000-000000000001 20096 ok",
		"0 nvidia/gpu/H100-80GB-HBM3 MIG 1g.10gb MIG-00000002-0000-0000-0000-000000000002 9984 ok",
		"0 nvidia/gpu/H100-80GB-HBM3 MIG 1g.10gb MIG-00000003-0000-0000-0000-000000000003 9984 ok",
	}
	const lostA40 = "nvidia-smi prints errors in place of the card's values"
	cases := map[string]struct {
		box   string
		files []string
		want  []string
	}{
		"a box with partitions":                         {box: "h100-mig", want: h100},
		"list and full query, no table":                 {box: "h100-mig", files: []string{"list.txt", "query.txt"}, want: h100},
		"an older driver without the query":             {box: "a30-mig", want: []string{"0 nvidia/card/A30-c8224c01 GPU-1e44b340-5807-0dbe-62e6-343a6b8b8bcd 24576 ok", "0 nvidia/gpu/A30 MIG 2g.12gb MIG-1b8509c0-e60d-502d-8263-d434867998aa 11968 ok", "0 nvidia/gpu/A30 MIG 1g.6gb MIG-41b9eab5-8d48-5c52-9f07-82bc59af3901 5952 ok", "0 nvidia/gpu/A30 MIG 1g.6gb MIG-55dcd9bd-e6b1-549a-bcb4-0b0496bfee9c 5952 ok"}},
		"partitions known by the table only":            {box: "a30-mig", files: []string{"table.txt"}, want: []string{"0 nvidia/card/A30-fc072f4c PCI-0000:0b:00.0 24576 ok", "0 nvidia/gpu/A30 MIG 11968MiB MIG-PCI-0000:0b:00.0/2/0 11968 ok", "0 nvidia/gpu/A30 MIG 5952MiB MIG-PCI-0000:0b:00.0/3/0 5952 ok", "0 nvidia/gpu/A30 MIG 5952MiB MIG-PCI-0000:0b:00.0/4/0 5952 ok"}},
		"MIG mode on, partitions not listed":            {box: "h100-mig", files: []string{"query-gpu.csv"}, want: []string{"0 nvidia/mig/H100-80GB-HBM3-68e31b94 GPU-00000000-0000-0000-0000-000000000000 81559 ok"}},
		"only the list":                                 {box: "a40-one-dead", files: []string{"list.txt"}, want: []string{"0 nvidia/gpu/A40 GPU-e45ee7ce-7e88-149a-f8dd-32b27f9512ce ? ok", "1 nvidia/gpu/A40 GPU-7d066543-8e81-d8ec-eb98-c1e31fca80c1 ? ok", "2 nvidia/gpu/A40 GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b ? ok", "3 nvidia/gpu/A40 GPU-f7177163-c833-dff4-b38f-c8d2872f1ec6 ? ok", "5 nvidia/gpu/A40 GPU-68d30a95-9472-8bc3-9aa2-4be94b319d21 ? ok", "6 nvidia/gpu/A40 GPU-3abe124e-cc82-bf2c-2e22-e6058f38c50c ? ok", "7 nvidia/gpu/A40 GPU-b713e632-3a68-d3dd-abf4-855826c50148 ? ok", "-1 nvidia/gpu/unknown PCI-0000:83:00.0 ? nvidia-smi: Unknown Error"}},
		"eight cards and one dead, table":               {box: "a40-table-only", want: []string{"0 nvidia/gpu/A40 PCI-0000:03:00.0 46068 ok", "1 nvidia/gpu/A40 PCI-0000:04:00.0 46068 ok", "2 nvidia/gpu/A40 PCI-0000:43:00.0 46068 ok", "3 nvidia/gpu/A40 PCI-0000:44:00.0 46068 ok", "4 nvidia/gpu/unknown PCI-0000:83:00.0 46068 " + lostA40, "5 nvidia/gpu/A40 PCI-0000:84:00.0 46068 ok", "6 nvidia/gpu/A40 PCI-0000:c3:00.0 46068 ok", "7 nvidia/gpu/A40 PCI-0000:c4:00.0 46068 ok"}},
		"eight cards and one dead, all forms":           {box: "a40-one-dead", want: []string{"0 nvidia/gpu/A40 GPU-e45ee7ce-7e88-149a-f8dd-32b27f9512ce 46068 ok", "1 nvidia/gpu/A40 GPU-7d066543-8e81-d8ec-eb98-c1e31fca80c1 46068 ok", "2 nvidia/gpu/A40 GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b 46068 ok", "3 nvidia/gpu/A40 GPU-f7177163-c833-dff4-b38f-c8d2872f1ec6 46068 ok", "4 nvidia/gpu/unknown PCI-0000:83:00.0 46068 nvidia-smi: Unknown Error", "5 nvidia/gpu/A40 GPU-68d30a95-9472-8bc3-9aa2-4be94b319d21 46068 ok", "6 nvidia/gpu/A40 GPU-3abe124e-cc82-bf2c-2e22-e6058f38c50c 46068 ok", "7 nvidia/gpu/A40 GPU-b713e632-3a68-d3dd-abf4-855826c50148 46068 ok"}},
		"a dead card between rows without header":       {box: "rtx3090-failed-between", want: []string{"0 nvidia/gpu/GeForce-RTX-3090 INDEX-0 ? ok", "2 nvidia/gpu/GeForce-RTX-3090 INDEX-2 ? ok", "-1 nvidia/gpu/unknown PCI-0000:02:00.0 ? nvidia-smi: Unknown Error"}},
		"a lost card beside a row without header":       {box: "rtx5070-lost-beside", want: []string{"0 nvidia/gpu/unknown PCI-0000:24:00.0 ? nvidia-smi: GPU is lost", "1 nvidia/gpu/GeForce-RTX-5070-Ti INDEX-1 ? ok"}},
		"full name beats the cut one":                   {box: "rtx4080", want: []string{"0 nvidia/gpu/GeForce-RTX-4080-SUPER GPU-00000000-0000-0000-0000-000000000000 16376 ok"}},
		"a driver that cannot be reached":               {box: "no-driver"},
		"a driver without cards":                        {box: "no-devices"},
		"a tool that answers no known call (no answer)": {box: "h100-mig", files: []string{"compute-apps.csv"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := detector(t, standIn(t, tc.box, tc.files...))
			if strings.Contains(name, "no answer") {
				if cards, err := d.Detect(context.Background()); err == nil {
					t.Errorf("cards %v where it cannot be told", show(cards))
				}
				return
			}
			wantCards(t, d, tc.want...)
		})
	}
}

// What shares cards is there when it is found, whatever the cards are called.
func TestDetect_SharingIsProbed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const library = "/usr/local/vgpu/libvgpu.so"
	for _, installed := range []bool{false, true} {
		want := map[string]string{"modes/mig": "", "modes/hami": "", "modes/mps": ""}
		if installed {
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(library)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, library), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			want["modes/hami"] = library
		}
		d := New(Config{Root: root, SMI: standIn(t, "rtx4080"), HAMi: library}, hclog.NewNullLogger())
		if _, err := d.smi.run.Look("nvidia-cuda-mps-control"); err == nil {
			delete(want, "modes/mps") // this machine has it
		}
		cards, err := d.Detect(context.Background())
		if err != nil || len(cards) != 1 {
			t.Fatalf("%d cards, %v", len(cards), err)
		}
		for name, source := range want {
			if got := cards[0].Sources[name]; got != source {
				t.Errorf("installed %v: %s by %q, want %q", installed, name, got, source)
			}
		}
	}
}

func TestDetect_NotInstalled(t *testing.T) {
	t.Parallel()
	for _, smi := range []string{"no-such-nvidia-smi", filepath.Join(t.TempDir(), "nvidia-smi")} {
		wantCards(t, detector(t, smi))
	}
}

func TestDetect_OldDriverRefusesAField(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(t.TempDir(), "nvidia-smi")
	body := `#!/bin/sh
case "$*" in
*mig.mode*|*power.limit*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2 ;;
--query-gpu=*) echo "index, uuid, name, pci.bus_id, memory.total [MiB], driver_version"; echo "0, GPU-1, Tesla K80, 00000000:05:00.0, 11441 MiB, 390.10" ;;
*) exit 1 ;;
esac
`
	if err := os.WriteFile(tool, []byte(body), 0o755); err != nil {
		t.Fatal(err)
	}
	d := detector(t, tool)
	wantCards(t, d, "0 nvidia/gpu/Tesla-K80 GPU-1 11441 ok")
	if d.smi.tier.Load() != int32(len(queryTiers)-1) {
		t.Errorf("tier %d is not remembered", d.smi.tier.Load())
	}
}

func TestDetect_HangingToolIsAnError(t *testing.T) {
	t.Parallel()
	tool := standIn(t, "a40-one-dead")
	if err := os.WriteFile(filepath.Join(filepath.Dir(tool), "box", "hang"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := detector(t, tool)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if cards, err := d.Detect(ctx); err == nil {
		t.Errorf("cards %v from a tool that hangs", show(cards))
	}
}

// kernelBox writes the files of a machine with one card on the bus.
func kernelBox(t *testing.T, address, driver, information string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, body string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pci := "sys/bus/pci/devices/" + address + "/"
	for name, value := range map[string]string{"vendor": "0x10de", "device": "0x2235", "class": "0x030200", "revision": "0xa1", "numa_node": "1"} {
		write(pci+name, value)
	}
	if driver != "" {
		if err := os.Symlink("../../../../bus/pci/drivers/"+driver, filepath.Join(root, pci, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	if information != "" {
		write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022")
		write("proc/driver/nvidia/gpus/"+address+"/information", information)
	}
	return root
}

const information = "Model: \t\t NVIDIA A40\nIRQ:   \t\t 131\nGPU UUID: \t GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b\nBus Location: \t 0000:43:00.0\nDevice Minor: \t 2\nGPU Excluded:\t No"

func TestDetect_KernelAlone(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		root string
		want []string
	}{
		"driver loaded":           {kernelBox(t, "0000:43:00.0", "nvidia", information), []string{"2 nvidia/gpu/A40 GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b ? ok"}},
		"never used yet":          {kernelBox(t, "0000:43:00.0", "nvidia", "Model: Unknown\nGPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 0"), []string{"0 nvidia/gpu/A40 PCI-0000:43:00.0 ? ok"}},
		"no driver":               {kernelBox(t, "0000:43:00.0", "", ""), []string{"-1 nvidia/gpu/A40 PCI-0000:43:00.0 ? " + reasonNoDriver}},
		"given to a virtual host": {kernelBox(t, "0000:43:00.0", "vfio-pci", ""), nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(Config{Root: tc.root, SMI: "no-such-nvidia-smi"}, hclog.NewNullLogger())
			wantCards(t, d, tc.want...)
		})
	}
}

func TestDetect_KernelCompletesTheTool(t *testing.T) {
	t.Parallel()
	root := kernelBox(t, "0000:43:00.0", "nvidia", information)
	d := New(Config{Root: root, SMI: standIn(t, "a40-table-only")}, hclog.NewNullLogger())
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	c := cards[2]
	if c.NUMANode == nil || *c.NUMANode != 1 || c.Sources[accel.AttrNUMA] != "sysfs" || c.Sources[accel.AttrMemory] != "cli" {
		t.Errorf("card %+v", c)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia2"}, d.Nodes(c)); diff != "" {
		t.Errorf("nodes %s", diff)
	}
	if cards[0].NUMANode != nil || d.Nodes(cards[0]) != nil {
		t.Errorf("facts were invented: %+v", cards[0])
	}
}

func TestDetect_CardTheToolLeavesOut(t *testing.T) {
	t.Parallel()
	root := kernelBox(t, "0000:99:00.0", "nvidia", information)
	d := New(Config{Root: root, SMI: standIn(t, "a40-table-only")}, hclog.NewNullLogger())
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 9 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	for _, c := range cards {
		if c.PCIAddress == "0000:99:00.0" && (c.Health.OK || c.Health.Reason != reasonUnreported || c.Model != "A40") {
			t.Errorf("card %+v", c)
		}
	}
}

// A list names the cards without their places: nothing tells which of the places that the kernel lists are theirs.
func TestDetect_ListWithoutPlacesMakesNoCards(t *testing.T) {
	t.Parallel()
	root := kernelBox(t, "0000:03:00.0", "nvidia", "") // the driver does not say which card it is
	d := New(Config{Root: root, SMI: standIn(t, "a40-one-dead", "list.txt")}, hclog.NewNullLogger())
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Errorf("%d cards, %v: %v", len(cards), err, show(cards))
	}
}

func TestDetect_DriverUnreachableListsTheBus(t *testing.T) {
	t.Parallel()
	root := kernelBox(t, "0000:43:00.0", "nvidia", information)
	d := New(Config{Root: root, SMI: standIn(t, "no-driver")}, hclog.NewNullLogger())
	wantCards(t, d, "2 nvidia/gpu/A40 GPU-17e62166-fc85-86df-a4d1-bc0e1742c08b ? "+reasonTool)
}

func TestSample(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d := detector(t, standIn(t, "h100-mig"))
	cards, err := d.Detect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Sample(ctx, cards)
	if err != nil {
		t.Fatal(err)
	}
	if board := got[cards[0].UUID]; *board.MemoryUsedMiB != 11125 || *board.PowerW != 433.78 || *board.TemperatureC != 53 {
		t.Errorf("divided board %+v", board)
	}
	delete(got, cards[0].UUID)
	want := map[string]device.Sample{
		"MIG-00000000-0000-0000-0000-000000000000": {MemoryUsedMiB: ptr[uint64](11091)},
		"MIG-00000001-0000-0000-0000-000000000001": {MemoryUsedMiB: ptr[uint64](17)},
		"MIG-00000002-0000-0000-0000-000000000002": {MemoryUsedMiB: ptr[uint64](9)},
		"MIG-00000003-0000-0000-0000-000000000003": {MemoryUsedMiB: ptr[uint64](9)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}

	d = detector(t, standIn(t, "a40-one-dead"))
	if cards, err = d.Detect(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err = d.Sample(ctx, cards); err != nil {
		t.Fatal(err)
	}
	if s := got[cards[2].UUID]; *s.MemoryUsedMiB != 821 || *s.PowerW != 81 || *s.UtilizationPct != 0 {
		t.Errorf("card 2: %+v", s)
	}
	if s, ok := got[cards[4].UUID]; ok && (s.TemperatureC != nil || s.PowerW != nil || s.UtilizationPct != nil) {
		t.Errorf("the dead card has numbers: %+v", s)
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, box := range []string{"a40-one-dead", "a40-table-only"} {
		d := detector(t, standIn(t, box))
		cards, err := d.Detect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Processes(ctx, cards)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range cards {
			want := []int{}
			if i == 2 {
				want = []int{2111354}
			}
			if diff := cmp.Diff(want, got[c.UUID]); diff != "" {
				t.Errorf("%s: card %d: %s", box, i, diff)
			}
		}
	}
	d := detector(t, standIn(t, "rtx3090-failed-between"))
	if got, err := d.Processes(ctx, nil); err == nil {
		t.Errorf("processes %v from a tool that does not list them", got)
	}
}

func TestDetector_Suite(t *testing.T) {
	t.Parallel()
	for _, box := range []string{"h100-mig", "a40-one-dead", "a40-table-only", "rtx4080"} {
		t.Run(box, func(t *testing.T) {
			t.Parallel()
			detectortest.Run(t, detector(t, standIn(t, box)))
		})
	}
}

// A driver that is installed while the plugin runs brings its tool with it: the next reading finds it.
func TestDetect_ToolInstalledLater(t *testing.T) {
	t.Parallel()
	later := standIn(t, "rtx4080")
	if err := os.Rename(later, later+".package"); err != nil {
		t.Fatal(err)
	}
	d := New(Config{Root: t.TempDir(), SMI: later}, hclog.NewNullLogger())
	if cards, err := d.Detect(context.Background()); err != nil || len(cards) != 0 {
		t.Fatalf("cards %v, %v", cards, err)
	}
	if err := os.Rename(later+".package", later); err != nil {
		t.Fatal(err)
	}
	if cards, err := d.Detect(context.Background()); err != nil || len(cards) != 1 || !cards[0].Health.OK {
		t.Errorf("cards %v, %v", cards, err)
	}
}

// The kernel's file and the tool differ in the name and in the UUID of one card: it stays one card, and both are told.
func TestDetect_SourcesThatDisagree(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(information, "A40", "A10")
	other = strings.ReplaceAll(other, "GPU-17e62166", "GPU-ffffffff")
	root := kernelBox(t, "0000:43:00.0", "nvidia", other)
	d := New(Config{Root: root, SMI: standIn(t, "a40-one-dead")}, hclog.NewNullLogger())
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 8 {
		t.Fatalf("%v, %v", show(cards), err)
	}
	told := strings.Join(cards[2].Conflicts, "; ")
	for _, want := range []string{"uuid: the driver's library or tool says GPU-17e62166", "the kernel GPU-ffffffff", "model: the driver's library or tool says NVIDIA A40, the kernel NVIDIA A10"} {
		if !strings.Contains(told, want) {
			t.Errorf("%q does not tell %q", told, want)
		}
	}
	if !cards[2].Health.OK || strings.Contains(strings.Join(cards[1].Conflicts, "; "), "uuid") {
		t.Errorf("cards %+v and %+v", cards[1], cards[2])
	}
}

// wantSome lists the cards, of which there must be some.
func wantSome(t *testing.T, d *Detector) []accel.Card {
	t.Helper()
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) == 0 {
		t.Fatalf("cards %v, %v", cards, err)
	}
	return cards
}
