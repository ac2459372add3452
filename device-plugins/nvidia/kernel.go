package nvidia

import (
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/catalogue"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/internal/accel"
)

const (
	pciVendor = "10de"
	procGPUs  = "proc/driver/nvidia/gpus"
)

var kernelModule = regexp.MustCompile(`Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\b`)

// Reasons of cards that the kernel shows and the tool does not.
const (
	reasonNoAnswer   = "the card does not answer on the PCI bus"
	reasonNoDriver   = "no NVIDIA kernel driver is bound to the card: install or load the driver"
	reasonUnreported = "the card is on the PCI bus and the driver does not report it"
)

// kernelReport reads the cards from /sys and /proc alone. It knows no memory and no live number. Cards that are bound
// to another driver on purpose, for example handed to a virtual machine, are not ours and left out.
func kernelReport(files hostfs.FS) (report, error) {
	devices, err := files.Accelerators(pciVendor)
	var r report
	if version, readErr := files.Text("proc/driver/nvidia/version"); readErr == nil {
		if m := kernelModule.FindStringSubmatch(version); m != nil {
			r.driver = m[1]
		}
	}
	for _, d := range devices {
		if d.Driver != "" && d.Driver != "nvidia" && d.Driver != "nouveau" && d.Driver != "nova" {
			continue
		}
		g := gpu{pci: d.Address}
		switch {
		case !d.Answers:
			g.dead = reasonNoAnswer
		case d.Driver != "nvidia":
			g.dead = reasonNoDriver
		}
		g.readInformation(files, d.Address)
		if p, ok := catalogue.ByPCI(pciVendor, d.Device); ok && g.name == "" {
			g.name, g.nameByPCI = p.Model, true
		}
		r.gpus = append(r.gpus, g)
	}
	r.apart()
	return r, err
}

// readInformation reads what the driver's own file says: "Model: …", "GPU UUID: …", "Device Minor: …". The UUID is
// question marks until the card has been used once.
func (g *gpu) readInformation(files hostfs.FS, address string) {
	body, err := files.Text(procGPUs, address, "information")
	if err != nil {
		return
	}
	for _, line := range strings.Split(body, "\n") {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			g.name = text(strings.TrimSuffix(value, "Unknown"))
		case "GPU UUID":
			if !strings.Contains(value, "?") {
				g.uuid = text(value)
			}
		case "Device Minor":
			g.minor = whole(value)
		}
	}
}

// addKernel completes a reading of the tool with the kernel's: device nodes, and cards the tool left out.
func (r *report) addKernel(k report) {
	var unreported []gpu
	for _, seen := range k.gpus {
		found := false
		for i := range r.gpus {
			if g := &r.gpus[i]; g.same(seen) || g.pci != "" && g.pci == seen.pci {
				g.dispute(seen)
				known(&r.gpus[i].minor, seen.minor)
				first(&r.gpus[i].pci, seen.pci)
				if r.gpus[i].dead != "" {
					r.gpus[i].merge(seen) // a dead card's tool often cannot name it
				}
				found = true
				break
			}
		}
		if !found && seen.dead != reasonNoDriver {
			unreported = append(unreported, seen)
		}
	}
	// A lost card that the tool knows by number only is the one that is missing, when there is just one of each.
	var nameless []int
	for i, g := range r.gpus {
		if g.dead != "" && g.pci == "" && g.uuid == "" {
			nameless = append(nameless, i)
		}
	}
	if len(nameless) == len(unreported) {
		for n, i := range nameless {
			r.gpus[i].merge(unreported[n])
		}
		unreported = nil
	}
	// Where the tool does not say which card is where, nothing tells which one it left out.
	if slices.ContainsFunc(r.gpus, func(g gpu) bool { return g.pci == "" }) {
		unreported = nil
	}
	for _, g := range unreported {
		first(&g.dead, reasonUnreported)
		r.gpus = append(r.gpus, g)
	}
	if r.driver != "" && k.driver != "" && r.driver != k.driver {
		r.conflict = conflict(accel.AttrDriver, r.driver, k.driver)
	}
	first(&r.driver, k.driver)
}

// dispute notes what the kernel says differently of a board.
func (g *gpu) dispute(kernel gpu) {
	if g.uuid != "" && kernel.uuid != "" && g.uuid != kernel.uuid {
		g.conflicts = append(g.conflicts, conflict(accel.AttrUUID, g.uuid, kernel.uuid))
	}
	if g.pci != "" && kernel.pci != "" && g.pci != kernel.pci {
		g.conflicts = append(g.conflicts, conflict(accel.AttrPCI, g.pci, kernel.pci))
	}
	if g.name != "" && !g.nameCut && kernel.name != "" && !kernel.nameByPCI && g.name != kernel.name {
		g.conflicts = append(g.conflicts, conflict(accel.AttrModel, g.name, kernel.name))
	}
}

func conflict(fact, first, kernel string) string {
	return fact + ": the driver's library or tool says " + first + ", the kernel " + kernel
}
