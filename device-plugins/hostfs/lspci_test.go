package hostfs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// Of the classes of the PCI bus four are of accelerators; sound, bridges and the rest are not, whoever made them.
func TestAccelerators_Classes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i, class := range []string{"0300", "0302", "0380", "1200", "0403", "0604", "0108", "0200", "0c03", "0880"} {
		pci(t, root, fmt.Sprintf("0000:%02x:00.0", i+1), map[string]string{"vendor": "0x1002", "device": "0x738c", "class": "0x" + class + "00", "revision": "0x01"})
	}
	pci(t, root, "0000:40:00.0", map[string]string{"vendor": "0x1022", "device": "0x1480", "class": "0x060000", "revision": "0x00"})
	found, err := hostfs.New(root).Accelerators("1002")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found {
		got = append(got, d.Class)
	}
	if diff := cmp.Diff([]string{"0300", "0302", "0380", "1200"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// listed is a line of lspci, with numbers in brackets or without.
var listed = regexp.MustCompile(`^(?:([0-9a-f]{4}):)?(\S+) ([^:\[]+?)(?: \[([0-9a-f]{4})\])?: .*?(?:Device ([0-9a-f]{4}))?(?: \[([0-9a-f]{4}):([0-9a-f]{4})\])? \(rev ([0-9a-f]{2})\)$`)

// Numbers that plain lspci does not print. The machine had only NVIDIA's cards in what was recorded of it.
var classes = map[string]string{"VGA compatible controller": "0300", "Audio device": "0403"}

// recordedBus makes the bus of a machine of what lspci printed on it.
func recordedBus(t *testing.T, file, driver string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for line := range strings.Lines(string(body)) {
		m := listed.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("line %q", line)
		}
		domain, class, vendor, device := m[1], m[4], m[6], m[7]
		if domain == "" {
			domain = "0000"
		}
		if class == "" {
			class, vendor, device = classes[m[3]], "10de", m[5]
		}
		pci(t, root, domain+":"+m[2], map[string]string{
			"vendor": "0x" + vendor, "device": "0x" + device, "class": "0x" + class + "00", "revision": "0x" + m[8], "numa_node": "-1", "driver": driver,
		})
	}
	return root
}

func TestAccelerators_RecordedMachines(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		file, driver, vendor string
		want                 []string // address, class, device, whether it answers
	}{
		"eight cards beside a management controller": {
			"dnn-8x-rtx4090-with-aspeed-bmc.txt", "nvidia", "10de",
			strings.Fields("16 36 46 56 98 b8 c8 d8"),
		},
		"eight cards given to guests, their sound left out": {
			"plain-8x-rtx5090-vfio-passthrough.txt", "vfio-pci", "10de",
			strings.Fields("16 27 38 5a 98 a8 b8 d8"),
		},
		"3D controllers": {"dnn-mthreads-s5000.txt", "mtgpu", "1ed5", strings.Fields("2a 3a 5c")},
		"processing accelerators, no display class":  {"dnn-ascend-910b2c.txt", "devdrv_device_driver", "19e5", strings.Fields("18 19 38 39")},
		"the management controller is nobody's card": {"dnn-8x-rtx4090-with-aspeed-bmc.txt", "nvidia", "1ed5", nil},
	}
	facts := map[string][3]string{ // file → class, device, bus of the one that does not answer
		"dnn-8x-rtx4090-with-aspeed-bmc.txt": {"0300", "2684"}, "plain-8x-rtx5090-vfio-passthrough.txt": {"0300", "2b85", "16"},
		"dnn-mthreads-s5000.txt": {"0302", "0400"}, "dnn-ascend-910b2c.txt": {"1200", "d802"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := hostfs.New(recordedBus(t, tc.file, tc.driver)).Accelerators(tc.vendor)
			if err != nil {
				t.Fatal(err)
			}
			var want []hostfs.PCIDevice
			for _, bus := range tc.want {
				f := facts[tc.file]
				want = append(want, hostfs.PCIDevice{
					Address: "0000:" + bus + ":00.0", Vendor: tc.vendor, Device: f[1], Class: f[0], Driver: tc.driver, Answers: bus != f[2],
				})
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
