package hostfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
)

// pci writes one device as the kernel shows it. An empty value leaves the file out.
func pci(t *testing.T, root, address string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(root, "sys/bus/pci/devices", address)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range files {
		var err error
		if name == "driver" {
			err = os.Symlink("../../../bus/pci/drivers/"+value, filepath.Join(dir, name))
		} else {
			err = os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAccelerators(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	pci(t, root, "0000:16:00.0", map[string]string{"vendor": "0x10de", "device": "0x2684", "class": "0x030000", "revision": "0xa1", "numa_node": "1", "driver": "nvidia"})
	pci(t, root, "0000:16:00.1", map[string]string{"vendor": "0x10de", "device": "0x22ba", "class": "0x040300", "revision": "0xa1"})
	pci(t, root, "0000:03:00.0", map[string]string{"vendor": "0x1a03", "device": "0x2000", "class": "0x030000", "revision": "0x52"})
	pci(t, root, "0000:36:00.0", map[string]string{"vendor": "0x10de", "device": "0x2684", "class": "0x030200", "revision": "0xff", "numa_node": "-1", "driver": "vfio-pci"})
	// A device whose file cannot be read stands between the good ones.
	if err := os.MkdirAll(filepath.Join(root, "sys/bus/pci/devices/0000:20:00.0/vendor"), 0o755); err != nil {
		t.Fatal(err)
	}

	got, err := hostfs.New(root).Accelerators("10de")
	if err == nil {
		t.Error("the unreadable device is not reported")
	}
	one := 1
	want := []hostfs.PCIDevice{
		{Address: "0000:16:00.0", Vendor: "10de", Device: "2684", Class: "0300", Driver: "nvidia", NUMANode: &one, Answers: true},
		{Address: "0000:36:00.0", Vendor: "10de", Device: "2684", Class: "0302", Driver: "vfio-pci"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestAccelerators_NoBus(t *testing.T) {
	t.Parallel()
	got, err := hostfs.New(t.TempDir()).Accelerators("10de")
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}
