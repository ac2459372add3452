package hostfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// PCIPath is the way from a host bridge to a PCI function. Source: the target of the link
// /sys/bus/pci/devices/<address>, .../pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0.
type PCIPath struct {
	Address string   // the function, in lower case
	Root    string   // the host bridge, such as pci0000:17; empty when the way is not known
	Bridges []string // addresses of the bridges on the way, from the host bridge down
}

var (
	hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

// PCIPath is the way to a PCI function. Only its address is known where the machine does not tell.
func (f FS) PCIPath(address string) PCIPath {
	p := PCIPath{Address: strings.ToLower(address)}
	if !pciAddress.MatchString(p.Address) {
		return p
	}
	target, err := f.Link(pciFolder, p.Address)
	if err != nil {
		return p
	}
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case hostBridge.MatchString(part):
			p.Root, p.Bridges = part, nil
		case p.Root != "" && pciAddress.MatchString(part) && part != p.Address:
			p.Bridges = append(p.Bridges, part)
		}
	}
	return p
}

// RDMADevice is a network card that other machines' memory can be reached through.
type RDMADevice struct {
	Name    string // such as mlx5_0
	Address string // PCI address in lower case
}

const rdmaFolder = "sys/class/infiniband"

// RDMADevices lists the RDMA devices that are PCI functions of their own, ordered by name. Virtual functions, made to be
// given away, are left out. Source: /sys/class/infiniband/<name>/device.
func (f FS) RDMADevices() ([]RDMADevice, error) {
	names, err := f.Names(rdmaFolder)
	if err != nil {
		return nil, fmt.Errorf("list rdma devices: %w", err)
	}
	var devices []RDMADevice
	var problems []error
	for _, name := range names {
		target, err := f.Link(rdmaFolder, name, "device")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a software device has none
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("read place of rdma device %s: %w", name, err))
			continue
		}
		d := RDMADevice{Name: name, Address: strings.ToLower(path.Base(target))}
		if _, err := f.Link(pciFolder, d.Address, "physfn"); err == nil || !pciAddress.MatchString(d.Address) {
			continue
		}
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b RDMADevice) int { return cmp.Compare(a.Name, b.Name) })
	return devices, errors.Join(problems...)
}
