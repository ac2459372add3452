package nvidia

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

const twinUUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"

// twins is what nvidia-smi prints of cards that all have one UUID, in the order of the list, each with as much memory in use
// as its bus has for a number. Written, not recorded.
func twins(buses ...int) vendorcli.Runner {
	query := "index, uuid, name, pci.bus_id, memory.total [MiB], memory.used [MiB], driver_version, mig.mode.current\n"
	list, nvlinks := "", ""
	for i, bus := range buses {
		query += fmt.Sprintf("%d, %s, NVIDIA A40, 00000000:%02d:00.0, 46068 MiB, %d MiB, 550.54, [N/A]\n", i, twinUUID, bus, bus)
		list += fmt.Sprintf("GPU %d: NVIDIA A40 (UUID: %s)\n", i, twinUUID)
		nvlinks += fmt.Sprintf("GPU %d: NVIDIA A40 (UUID: %s)\n%s", i, twinUUID, "\t Link 0: 25 GB/s\n")
	}
	var made vendorcli.Recording
	for args, text := range map[string]string{
		"--query-gpu=" + queryTiers[0] + " --format=csv": query, "-L": list, "nvlink -s": nvlinks,
		"--query-compute-apps=gpu_uuid,pid --format=csv": "gpu_uuid, pid\n" + twinUUID + ", 4711\n",
	} {
		made.Calls = append(made.Calls, vendorcli.Call{Argv: append([]string{"nvidia-smi"}, strings.Split(args, " ")...), Stdout: text})
	}
	return vendorcli.Replay(made)
}

// names are the identities of the cards by their buses: the memory in use of each tells which it is.
func names(t *testing.T, d *Detector) string {
	t.Helper()
	cards := wantSome(t, d)
	samples, err := d.Sample(context.Background(), cards)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range cards {
		used := samples[c.UUID].MemoryUsedMiB
		if used == nil || fmt.Sprintf("0000:%02d:00.0", *used) != c.PCIAddress {
			t.Errorf("the numbers of %s at %s are another card's: %v", c.UUID, c.PCIAddress, used)
		}
		if len(c.Conflicts) > 0 {
			t.Errorf("conflicts of %s: %v", c.UUID, c.Conflicts)
		}
		all = append(all, fmt.Sprintf("%s %s", c.PCIAddress[5:7], c.UUID))
	}
	return strings.Join(all, ", ")
}

// A UUID that two cards print hides neither of them, and no card changes its name when another comes or goes.
func TestDetect_RepeatedUUID(t *testing.T) {
	t.Parallel()
	const one, two = "01 PCI-0000:01:00.0", "02 PCI-0000:02:00.0"
	const restart = 0
	cases := map[string]struct {
		readings [][]int
		want     []string
	}{
		"both at once":             {[][]int{{1, 2}, {1, 2}}, []string{one + ", " + two, one + ", " + two}},
		"in another order":         {[][]int{{1, 2}, {2, 1}}, []string{one + ", " + two, two + ", " + one}},
		"one is lost":              {[][]int{{1, 2}, {2}, {1}}, []string{one + ", " + two, two, one}},
		"one is lost in a restart": {[][]int{{1, 2}, {restart}, {2}, {1, 2}}, []string{one + ", " + two, "", two, one + ", " + two}},
		"the second comes later":   {[][]int{{1}, {1, 2}, {restart}, {2}, {1}}, []string{"01 " + twinUUID, "01 " + twinUUID + ", " + two, "", two, "01 " + twinUUID}},
		"three":                    {[][]int{{1, 2, 3}, {3}}, []string{one + ", " + two + ", 03 PCI-0000:03:00.0", "03 PCI-0000:03:00.0"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			begin := func() *Detector {
				return New(Config{Files: hostfs.Replay(hostfs.NewSnapshot()), Tools: twins(), NoLibrary: true, StateDir: state}, hclog.NewNullLogger())
			}
			d := begin()
			for step, buses := range tc.readings {
				if buses[0] == restart {
					d = begin()
					continue
				}
				d.smi.run = twins(buses...)
				if diff := cmp.Diff(tc.want[step], names(t, d)); diff != "" {
					t.Errorf("step %d (-want +got):\n%s", step, diff)
				}
			}
		})
	}
}

// A process that is only known to run on the UUID may run on either card: neither is said to be empty, nor in use.
func TestProcesses_RepeatedUUID(t *testing.T) {
	t.Parallel()
	d := New(Config{Files: hostfs.Replay(hostfs.NewSnapshot()), Tools: twins(1), NoLibrary: true}, hclog.NewNullLogger())
	for step, buses := range [][]int{{1}, {1, 2}} {
		d.smi.run = twins(buses...)
		cards := wantSome(t, d)
		processes, err := d.Processes(context.Background(), cards)
		if err != nil {
			t.Fatal(err)
		}
		samples, err := d.Sample(context.Background(), cards)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]int{}
		if len(buses) == 1 {
			want[twinUUID] = []int{4711}
		}
		if diff := cmp.Diff(want, processes); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", step, diff)
		}
		for uuid, s := range samples {
			if diff := cmp.Diff(want[uuid], s.Processes); diff != "" {
				t.Errorf("step %d: processes of %s (-want +got):\n%s", step, uuid, diff)
			}
		}
	}
}

// Of the links of two boards with one UUID each has its own.
func TestLinks_RepeatedUUID(t *testing.T) {
	t.Parallel()
	s := &smi{path: "nvidia-smi", run: twins(1, 2)}
	r, _, _, err := s.call(context.Background(), "--query-gpu="+queryTiers[0], "--format=csv")
	if err != nil {
		t.Fatal(err)
	}
	links := s.readNVLinks(context.Background())
	if len(links) != 2 {
		t.Fatalf("links %v", links)
	}
	links[1].GBps = append(links[1].GBps, nil)
	r.addNVLinks(links)
	if r.gpus[0].links == nil || len(r.gpus[1].links) != len(r.gpus[0].links)+1 {
		t.Errorf("links %v and %v", r.gpus[0].links, r.gpus[1].links)
	}
}

// The kernel repeats what the driver says: its files tell such cards apart by their places.
func TestKernelReport_RepeatedUUID(t *testing.T) {
	t.Parallel()
	files := host("nvidia")
	files.Folders["sys/bus/pci/devices"] = append(files.Folders["sys/bus/pci/devices"], "0000:02:00.0")
	for name, text := range map[string]string{"vendor": "0x10de", "device": "0x2684", "class": "0x030200", "revision": "0xa1"} {
		files.Texts["sys/bus/pci/devices/0000:02:00.0/"+name] = text
	}
	files.Links["sys/bus/pci/devices/0000:02:00.0/driver"] = "../../../bus/pci/drivers/nvidia"
	for minor, address := range []string{"0000:01:00.0", "0000:02:00.0"} {
		files.Texts[procGPUs+"/"+address+"/information"] = fmt.Sprintf("Model: NVIDIA A40\nGPU UUID: %s\nDevice Minor: %d\n", twinUUID, minor)
	}
	for name, run := range map[string]vendorcli.Runner{"with the tool": twins(1, 2), "the kernel alone": vendorcli.Replay(vendorcli.Recording{})} {
		d := New(Config{Files: hostfs.Replay(files), Tools: run, NoLibrary: true}, hclog.NewNullLogger())
		var got []string
		for _, c := range wantSome(t, d) {
			got = append(got, fmt.Sprint(c.UUID, d.Nodes(c), c.Conflicts))
		}
		want := []string{"PCI-0000:01:00.0[/dev/nvidia0] []", "PCI-0000:02:00.0[/dev/nvidia1] []"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A partition of a board that has no UUID of its own is named by its board's place; a line that is printed twice is one card.
func TestName_PartsAndLinesPrintedTwice(t *testing.T) {
	t.Parallel()
	zero, one := 0, 1
	part := func() []mig { return []mig{{uuid: "MIG-5", profile: "1g.10gb", gi: &one, ci: &zero}} }
	d := detector(t, "none")
	r := report{gpus: []gpu{
		{uuid: "GPU-a", pci: "0000:01:00.0", name: "A100", migs: part()}, {uuid: "GPU-a", pci: "0000:02:00.0", name: "A100", migs: part()},
		{uuid: "GPU-b", pci: "0000:03:00.0", name: "A100"}, {uuid: "GPU-b", pci: "0000:03:00.0", name: "A100"}, {uuid: "GPU-c", pci: "0000:04:00.0", name: "A100", migs: part()},
	}}
	r.apart()
	d.name(&r)
	var got []string
	for _, c := range r.cards("cli", d.files, probes{}) {
		got = append(got, c.UUID)
	}
	want := []string{"PCI-0000:01:00.0", "MIG-PCI-0000:01:00.0/1/0", "PCI-0000:02:00.0", "MIG-PCI-0000:02:00.0/1/0", "PCI-0000:03:00.0", "GPU-c", "MIG-5"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
