package diagnose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// Case is what a detector knows of its brand on a machine.
type Case struct {
	Vendor accel.Vendor
	Setup  Setup
	Files  hostfs.FS
	Tools  vendorcli.Runner
	Bus    []hostfs.PCIDevice // the brand's, also those given away
	Signs  bool               // a device node or module shows that there may be cards
	Paths  []Path             // as they were tried, without the kernel's
	Said   []string           // what the tools printed
	Cards  []accel.Card       // as the detector lists them
}

// givenAway are kernel drivers that hold a card for somebody else, such as a virtual machine.
var givenAway = []string{"vfio-pci", "pci-stub", "pciback"}

// Examine says what is there and what is missing. A brand of which nothing shows lacks nothing.
func Examine(c Case) Brand {
	b := Brand{Vendor: c.Vendor, Cards: len(c.Cards), Bus: Bus(c.Bus), Paths: append(slices.Clone(c.Paths), kernelPath(c))}
	for _, card := range c.Cards {
		if card.Health.OK {
			b.Usable++
		}
	}
	b.Present = len(c.Bus) > 0 || c.Signs || len(c.Cards) > 0
	if !b.Present {
		for _, p := range c.Paths {
			if p.State != Missing && p.State != NotTried {
				b.Notes = append(b.Notes, p.Name+" is installed, and no card shows")
			}
		}
		return b
	}
	e := examination{Case: c, Brand: &b}
	if e.away() {
		return b
	}
	e.silent()
	e.driver()
	e.nodes()
	e.paths()
	e.runtime()
	return b
}

func kernelPath(c Case) Path {
	p := Path{Name: "PCI bus and device nodes", Kind: Kernel, State: Works, Detail: fmt.Sprintf("%d cards on the bus", len(c.Bus))}
	if len(c.Bus) == 1 {
		p.Detail = "1 card on the bus"
	}
	if names, err := c.Files.Names("sys/bus/pci/devices"); err != nil || len(names) == 0 {
		p.State, p.Detail = Failed, "the machine shows no PCI bus here"
	}
	return p
}

// An examination looks at one thing after another. What is missing because of what was found before is not told again.
type examination struct {
	Case
	*Brand
	module bool // the driver's module is loaded, or it cannot be told
}

func (e *examination) lack(kind Kind, fix Fix, format string, args ...any) {
	l := Lack{Kind: kind, What: fmt.Sprintf(format, args...), Fix: fix}
	if !slices.Contains(e.Lacks, l) {
		e.Lacks = append(e.Lacks, l)
	}
}

func (e *examination) lacks(kinds ...Kind) bool {
	return slices.ContainsFunc(e.Lacks, func(l Lack) bool { return slices.Contains(kinds, l.Kind) })
}

// away notes the cards that are held for somebody else. It tells whether no other is left.
func (e *examination) away() bool {
	n := 0
	for _, d := range e.Case.Bus {
		if slices.Contains(givenAway, d.Driver) {
			n++
		}
	}
	if n > 0 {
		e.Notes = append(e.Notes, fmt.Sprintf("%d of %d cards are held by %s for virtual machines, and are not offered", n, len(e.Case.Bus), "vfio-pci or its like"))
	}
	return n > 0 && n == len(e.Case.Bus)
}

func (e *examination) silent() {
	for _, d := range e.Case.Bus {
		if !d.Answers {
			e.lack(CardSilent, Fix{Do: "shut the machine down and start it again; where that does not help, seat the card anew or have it replaced"},
				"the card %s does not answer on the PCI bus: it lost its power, or fell off the bus", d.Address)
		}
	}
}

// driver looks for the modules and for what holds the cards.
func (e *examination) driver() {
	for _, name := range e.Setup.Modules {
		if m, ok := e.loaded(name); ok {
			e.Modules, e.module = append(e.Modules, m), true
		}
	}
	free, wrong := 0, map[string]bool{}
	for _, d := range e.Case.Bus {
		switch _, bad := e.Setup.Wrong[d.Driver]; {
		case bad:
			wrong[d.Driver] = true
		case d.Driver == "" && d.Answers:
			free++
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(wrong)) {
		e.lack(NoDriver, e.Setup.Wrong[driver], "the kernel driver %s holds the card, and cannot compute with it", driver)
	}
	switch {
	case len(wrong) > 0:
	case len(e.Setup.Modules) == 0:
		e.module = free == 0
		if free > 0 {
			e.lack(NoDriver, e.Setup.Driver, "no kernel driver holds %s", count(free, len(e.Case.Bus)))
		}
	case !e.module && (free > 0 || len(e.Case.Bus) == 0):
		e.notLoaded()
	case e.module && free > 0:
		e.lack(NoDriver, Fix{Do: "look for its complaint with \"sudo dmesg | grep -i " + e.Modules[0].Name + "\"; most often the card is newer than the driver", See: e.Setup.Driver.See},
			"the module %s is loaded and does not hold %s", e.Modules[0].Name, count(free, len(e.Case.Bus)))
	case !e.module:
		e.module = true // something else than was expected holds the cards
	}
	if !e.module {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.Setup.Extra)) {
		m, ok := e.loaded(name)
		e.Modules = append(e.Modules, m)
		if !ok {
			e.lack(NoModule, e.Setup.Extra[name], "the kernel module %s is not loaded", name)
		}
	}
}

func count(n, of int) string {
	if n == of {
		return "the cards"
	}
	return fmt.Sprintf("%d of %d cards", n, of)
}

func (e *examination) loaded(name string) (Module, bool) {
	name = strings.ReplaceAll(name, "-", "_")
	m := Module{Name: name, Loaded: e.Files.Exists("sys/module", name)}
	if version, err := e.Files.Text("sys/module", name, "version"); err == nil && m.Loaded {
		m.Version = version
	}
	return m, m.Loaded
}

// notLoaded tells a driver that is not installed from one that is not loaded.
func (e *examination) notLoaded() {
	first := e.Setup.Modules[0]
	for _, name := range e.Setup.Modules {
		e.Modules = append(e.Modules, Module{Name: name})
	}
	if name := e.installed(); name != "" {
		e.lack(NoModule, Fix{Do: "sudo modprobe " + name + "; where that is refused, \"sudo dmesg\" says why: most often the module was built for another kernel, or is not signed and Secure Boot is on", See: e.Setup.Driver.See},
			"the kernel module %s is installed and not loaded", name)
		return
	}
	e.lack(NoDriver, e.Setup.Driver, "the driver is not installed: the kernel has no module %s", first)
}

// installed is the module that the running kernel could load; empty when there is none.
func (e *examination) installed() string {
	release, err := e.Files.Text("proc/sys/kernel/osrelease")
	if err != nil || release == "" {
		return ""
	}
	wanted := func(line string) string {
		file, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		name = strings.ReplaceAll(name, "-", "_")
		for _, module := range e.Setup.Modules {
			if name == strings.ReplaceAll(module, "-", "_") {
				return module
			}
		}
		return ""
	}
	list, err := e.Files.Brief(func(text string) string { return keepLines(text, func(line string) bool { return wanted(line) != "" }) }, "lib/modules", release, "modules.dep")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(list) {
		if name := wanted(strings.TrimSpace(line)); name != "" {
			return name
		}
	}
	return ""
}

// nodes looks for the device nodes, and whether this process may use them.
func (e *examination) nodes() {
	var denied []string
	for _, n := range e.Setup.Nodes {
		found := e.Files.Glob(n.Pattern)
		if len(found) == 0 && e.module && !e.lacks(NoDriver) {
			e.lack(NoNode, n.Fix, "the device node /%s is not there", n.Pattern)
		}
		for _, name := range found {
			if !slices.Contains(e.Nodes, "/"+name) {
				e.Nodes = append(e.Nodes, "/"+name)
			}
			if err := e.Files.Usable(name); errors.Is(err, fs.ErrPermission) {
				denied = append(denied, "/"+name)
			}
		}
	}
	if len(denied) == 0 {
		return
	}
	fix := Fix{Do: "run the Nomad agent, and this check, as root"}
	if len(e.Setup.Groups) > 0 {
		fix.Do = "sudo usermod -a -G " + strings.Join(e.Setup.Groups, ",") + " USER, and sign in anew; or run the Nomad agent, and this check, as root"
	}
	const most = 4
	more := ""
	if len(denied) > most {
		more = fmt.Sprintf(" and %d more", len(denied)-most)
		denied = denied[:most]
	}
	e.lack(NoPermission, fix, "this user may not use %s%s", strings.Join(denied, ", "), more)
}

// paths looks at what the tools said.
func (e *examination) paths() {
	tools, missing := 0, 0
	for _, p := range e.Case.Paths {
		if p.Kind != Tool {
			continue
		}
		tools++
		if p.State == Missing || p.State == Foreign {
			missing++
		}
		if p.State == Works {
			return
		}
	}
	e.sayings()
	if tools == missing && tools > 0 && !e.lacks(NoDriver) {
		e.lack(NoTool, e.Setup.Tool, "no tool of the maker is installed: without it cards are known by their place only")
	}
	for _, p := range e.Case.Paths {
		switch {
		case p.Kind != Tool:
		case p.State == Hangs:
			e.lack(ToolHangs, Fix{Do: "run it by hand; where it hangs too, \"sudo dmesg\" tells of a card or driver that does not answer, and a restart of the machine helps"}, "%s %s", p.Name, p.Detail)
		case p.State == Failed && !e.lacks(NoDriver, NoModule, NoNode, NoPermission, NoLibrary, ToolFails):
			e.lack(ToolFails, Fix{Do: "run it by hand and read what it says; if it lists the cards there, send a bundle: heteroflow doctor -bundle FILE.tar.gz"}, "%s %s", p.Name, p.Detail)
		}
	}
}

// sayings finds known complaints in what the tools printed. They tell nothing new where the driver is missing.
func (e *examination) sayings() {
	if e.lacks(NoDriver, NoModule) {
		return
	}
	for _, s := range e.Setup.Sayings {
		if slices.ContainsFunc(e.Said, func(said string) bool { return strings.Contains(said, s.Text) }) && !e.lacks(s.Kind) {
			e.lack(s.Kind, s.Fix, "%s", s.What)
		}
	}
}

// runtime looks for the maker's container runtime, where the machine has Docker.
func (e *examination) runtime() {
	r := e.Setup.Runtime
	if r == nil || !e.docker() {
		return
	}
	if slices.Contains(e.dockerRuntimes(), r.Name) {
		return
	}
	for _, dir := range []string{"etc/cdi", "run/cdi", "var/run/cdi"} {
		if len(e.Files.Glob(dir+"/*"+string(e.Case.Vendor)+"*")) > 0 {
			return // Docker takes the devices from here
		}
	}
	for _, program := range r.Programs {
		if _, err := e.Tools.Look(program); err == nil {
			e.lack(NoDockerSetup, r.Configure, "Docker does not know the runtime %q: it is not in /etc/docker/daemon.json", r.Name)
			return
		}
	}
	e.lack(NoRuntime, r.Install, "the container toolkit is not installed: containers get no libraries of the maker")
}

func (e *examination) docker() bool {
	for _, program := range []string{"dockerd", "docker"} {
		if _, err := e.Tools.Look(program); err == nil {
			return true
		}
	}
	return e.Files.Exists("run/docker.sock")
}

// dockerRuntimes are the runtimes that Docker is set up with. The rest of its settings is nobody's business.
func (e *examination) dockerRuntimes() []string {
	names := func(text string) []string {
		var settings struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		}
		if json.Unmarshal([]byte(text), &settings) != nil {
			return nil
		}
		return slices.Sorted(maps.Keys(settings.Runtimes))
	}
	brief, err := e.Files.Brief(func(text string) string {
		kept := map[string]map[string]struct{}{"runtimes": {}}
		for _, name := range names(text) {
			kept["runtimes"][name] = struct{}{}
		}
		out, err := json.Marshal(kept)
		if err != nil {
			return ""
		}
		return string(out)
	}, "etc/docker/daemon.json")
	if err != nil {
		return nil
	}
	return names(brief)
}

func keepLines(text string, keep func(line string) bool) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if keep(strings.TrimSpace(line)) {
			b.WriteString(line)
		}
	}
	return b.String()
}
