// Package hostfs reads what the kernel says about cards from /sys and /proc under a given root folder, so that a test
// reads a recorded machine; it records what is read, and plays it again. One device that cannot be read never hides its neighbours, which is why it does not use
// a library that reads all or nothing. What a brand's own files mean belongs to the package of the brand.
package hostfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Classes of PCI devices that can be accelerators: VGA, 3D and other display controllers, processing accelerators.
var acceleratorClasses = []string{"0300", "0302", "0380", "1200"}

// FS is the kernel's files of a machine: of this one, of one under another folder, or of a recorded one. The zero value
// has no files; see Valid.
type FS struct{ source source }

// New returns the files under root. An empty root is "/".
func New(root string) FS {
	if root == "" {
		root = "/"
	}
	return FS{source: folder(root)}
}

// Valid tells whether there is a machine behind it.
func (f FS) Valid() bool { return f.source != nil }

// Path is the place of a file where this machine has it, for what cannot be read at once and ended, such as a log. What is
// read there is not recorded. It is empty when the machine is a recorded one.
func (f FS) Path(name ...string) string {
	switch from := f.source.(type) {
	case folder:
		return from.path(inside(name...))
	case *Recorder:
		return FS{source: from.from}.Path(name...)
	}
	return ""
}

// inside is the name of a file under the root. No name leads out of it.
func inside(name ...string) string {
	return strings.TrimPrefix(path.Clean("/"+strings.Join(name, "/")), "/")
}

// Text reads a small file and trims it. A file that is not there is the empty text.
func (f FS) Text(name ...string) (string, error) {
	b, err := f.source.read(inside(name...))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// Brief reads a file and keeps of it what is of use. A recording has no more of it. Keep is given its own results when a
// recording is played.
func (f FS) Brief(keep func(text string) string, name ...string) (string, error) {
	file := inside(name...)
	from := f.source
	r, recording := from.(*Recorder)
	if recording {
		from = r.from
	}
	b, err := from.read(file)
	text := strings.TrimSpace(keep(string(b)))
	if recording {
		r.note("read", file, err, func() { r.made.Texts[file] = text })
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return text, err
}

// Names lists a folder, sorted. A folder that is not there is empty.
func (f FS) Names(name ...string) ([]string, error) {
	names, err := f.source.names(inside(name...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// Link is the target of a link. The error is fs.ErrNotExist where there is none.
func (f FS) Link(name ...string) (string, error) { return f.source.link(inside(name...)) }

// Exists tells whether a file or folder is there.
func (f FS) Exists(name ...string) bool { return f.source.exists(inside(name...)) == nil }

// Usable tells whether this process may read and write a file: nil, or an error that is fs.ErrNotExist or
// fs.ErrPermission. The file is not opened.
func (f FS) Usable(name ...string) error { return f.source.usable(inside(name...)) }

// Glob lists the files whose name matches a pattern, as path.Match has it, sorted. A pattern that is none matches
// nothing, and neither does a folder that cannot be read. The names have no slash in front.
func (f FS) Glob(pattern string) []string {
	found := []string{""}
	for part := range strings.SplitSeq(inside(pattern), "/") {
		var next []string
		for _, dir := range found {
			next = append(next, f.matching(dir, part)...)
		}
		found = next
	}
	return slices.DeleteFunc(found, func(name string) bool { return !f.Exists(name) })
}

func (f FS) matching(dir, part string) []string {
	if !strings.ContainsAny(part, `*?[\`) {
		return []string{inside(dir, part)}
	}
	from := f.source
	r, recording := from.(*Recorder)
	if recording {
		from = r.from
	}
	names, err := from.names(inside(dir))
	if err != nil {
		return nil
	}
	var found []string
	for _, name := range names {
		if ok, err := path.Match(part, name); ok && err == nil {
			found = append(found, name)
		}
	}
	if recording { // of a folder such as /dev only what was asked for
		r.noteNames(inside(dir), found)
	}
	for i, name := range found {
		found[i] = inside(dir, name)
	}
	return found
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
	all, err := f.PCIDevices()
	var cards []PCIDevice
	for _, d := range all {
		if d.Vendor == vendor && slices.Contains(acceleratorClasses, d.Class) {
			cards = append(cards, d)
		}
	}
	return cards, err
}

// PCIDevices lists all functions, ordered by address. Devices that cannot be read are left out and reported in the
// error beside the others.
func (f FS) PCIDevices() ([]PCIDevice, error) {
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
		devices = append(devices, d)
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
	if target, err := f.Link(pciFolder, address, "driver"); err == nil {
		d.Driver = path.Base(target)
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
