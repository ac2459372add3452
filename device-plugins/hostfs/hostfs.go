// Package hostfs reads what the kernel says about cards from /sys and /proc under a given root folder, so that a test
// reads a recorded machine. One device that cannot be read never hides its neighbours, which is why it does not use
// a library that reads all or nothing. What a brand's own files mean belongs to the package of the brand.
package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Classes of PCI devices that can be accelerators: VGA, 3D and other display controllers, processing accelerators.
var acceleratorClasses = []string{"0300", "0302", "0380", "1200"}

// FS is a root folder with the kernel's files in it: "/" on a real machine.
type FS struct{ root string }

// New returns the files under root. An empty root is "/".
func New(root string) FS {
	if root == "" {
		root = "/"
	}
	return FS{root: root}
}

// Path is the place of a file of the machine under the root.
func (f FS) Path(name ...string) string { return filepath.Join(append([]string{f.root}, name...)...) }

// Text reads a small file and trims it. A file that is not there is the empty text.
func (f FS) Text(name ...string) (string, error) {
	b, err := os.ReadFile(f.Path(name...))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// Names lists a folder, sorted. A folder that is not there is empty.
func (f FS) Names(name ...string) ([]string, error) {
	entries, err := os.ReadDir(f.Path(name...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// PCIDevice is one function on the PCI bus. Source of each field: the file of the same name in
// /sys/bus/pci/devices/<address>/.
type PCIDevice struct {
	Address  string // domain:bus:device.function in lower case
	Vendor   string // 4 hexadecimal digits
	Device   string // 4 hexadecimal digits
	Class    string // 4 hexadecimal digits: class and subclass
	Driver   string // name of the bound kernel driver, empty when none is bound
	NUMANode *int   // nil when the machine does not say
	Answers  bool   // false when the bus reads all ones: powered off or fallen off
}

const pciFolder = "sys/bus/pci/devices"

// Accelerators lists the functions of a PCI vendor that can be accelerators, ordered by address. Devices that
// cannot be read are left out and reported in the error beside the others.
func (f FS) Accelerators(vendor string) ([]PCIDevice, error) {
	addresses, err := f.Names(pciFolder)
	if err != nil {
		return nil, fmt.Errorf("list pci devices: %w", err)
	}
	var devices []PCIDevice
	var problems []error
	for _, address := range addresses {
		d, err := f.pciDevice(address)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if d.Vendor == vendor && slices.Contains(acceleratorClasses, d.Class) {
			devices = append(devices, d)
		}
	}
	return devices, errors.Join(problems...)
}

func (f FS) pciDevice(address string) (PCIDevice, error) {
	d := PCIDevice{Address: strings.ToLower(address), Answers: true}
	var text [4]string
	for i, file := range []string{"vendor", "device", "class", "revision"} {
		t, err := f.Text(pciFolder, address, file)
		if err != nil {
			return d, fmt.Errorf("read %s of pci device %s: %w", file, address, err)
		}
		text[i] = strings.TrimPrefix(strings.ToLower(t), "0x")
	}
	d.Vendor, d.Device, d.Class = text[0], text[1], text[2]
	if len(d.Class) == 6 {
		d.Class = d.Class[:4]
	}
	d.Answers = text[3] != "ff"
	d.NUMANode = f.NUMANode(address)
	if target, err := os.Readlink(f.Path(pciFolder, address, "driver")); err == nil {
		d.Driver = filepath.Base(target)
	}
	return d, nil
}

// NUMANode is the NUMA node of a PCI function, nil when the kernel does not know it (it prints -1).
func (f FS) NUMANode(address string) *int {
	text, err := f.Text(pciFolder, address, "numa_node")
	if err != nil {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil
	}
	return &n
}
