package nvidia

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// toolLimit is how long nvidia-smi may take. It is below the limit of a whole reading, so that the kernel's files can
// still be read when the tool hangs.
const toolLimit = 4 * time.Second

// reasonTool is the reason of cards while the driver cannot be reached.
const reasonTool = "nvidia-smi cannot reach the NVIDIA driver"

// Config says where to look.
type Config struct {
	Root string // folder with /proc and /sys of the machine; NVML is used only when it is "/" or empty
	SMI  string // nvidia-smi: a name to find on PATH, or a path; empty is the name
	HAMi string // HAMi's library, under Root; empty when it is not to be looked for
	// Files are the machine's files, in place of those under Root, and Tools runs its tools; nil runs those of this machine.
	Files hostfs.FS
	Tools vendorcli.Runner
	// StateDir is a folder that outlives a restart, for the UUIDs that several cards gave; empty forgets them. Of a machine
	// that is only looked at nothing is written there.
	StateDir string
	Looking  bool
	// NoLibrary keeps NVML from being used. A recorded machine has none.
	NoLibrary bool
	// XidHardware are the Xids that are blamed on the card, XidApplication those that are blamed on the job. Others are told
	// and blamed on nobody.
	XidHardware, XidApplication []int
}

// Detector finds NVIDIA cards. It is safe for concurrent use.
type Detector struct {
	log   hclog.Logger
	files hostfs.FS
	smi   *smi
	hami  string
	nvml  func() (report, error) // nil when the library is not to be used
	known *brand.Namesakes

	mu     sync.Mutex
	minors map[string]int // card UUID → number of its device node
	// repeated is, of the cards whose UUID others print too, that UUID by the name of the card.
	repeated map[string]string
	said     string // the last thing logged about the path taken
	witness
}

var (
	_ device.Detector      = (*Detector)(nil)
	_ device.Sampler       = (*Detector)(nil)
	_ device.ProcessLister = (*Detector)(nil)
	_ device.NodeLister    = (*Detector)(nil)
	_ device.EventTeller   = (*Detector)(nil)
	_ device.Noter         = (*Detector)(nil)
)

// New returns a detector. It touches nothing until the first call.
func New(cfg Config, log hclog.Logger) *Detector {
	d := &Detector{log: log, files: cfg.Files, hami: cfg.HAMi, smi: &smi{path: cfg.SMI, run: cfg.Tools}, minors: map[string]int{}, repeated: map[string]string{}, witness: newWitness(cfg)}
	d.known = brand.NewNamesakes(accel.NVIDIA, brand.Config{StateDir: cfg.StateDir, Looking: cfg.Looking}, log)
	if !d.files.Valid() {
		d.files = hostfs.New(cfg.Root)
	}
	if d.smi.run == nil {
		d.smi.run = vendorcli.Host{}
	}
	if d.smi.path == "" {
		d.smi.path = "nvidia-smi"
	}
	if !cfg.NoLibrary && (cfg.Root == "" || cfg.Root == "/") {
		d.nvml = nvmlReport
	}
	return d
}

// Name is the name of the source.
func (d *Detector) Name() string { return "nvidia" }

// Note says when the library is not part of this build.
func (d *Detector) Note() string { return withoutNVML }

// Vendor is the brand.
func (d *Detector) Vendor() accel.Vendor { return accel.NVIDIA }

// Detect lists the cards by the best path that answers: NVML, nvidia-smi, the kernel.
func (d *Detector) Detect(ctx context.Context) ([]accel.Card, error) {
	r, source, err := d.inventory(ctx)
	if err != nil {
		return nil, err
	}
	cards := r.cards(source, d.files, d.probe())
	d.remember(r)
	return cards, nil
}

// probe looks for what shares cards besides MIG.
func (d *Detector) probe() probes {
	found := probes{}
	if path, err := d.smi.run.Look("nvidia-cuda-mps-control"); err == nil {
		found[accel.ModeMPS] = path
	}
	if d.hami != "" && d.files.Exists(d.hami) {
		found[accel.ModeHAMi] = d.hami
	}
	return found
}

func (d *Detector) inventory(ctx context.Context) (report, string, error) {
	kernel, kernelErr := kernelReport(d.files)
	if kernelErr != nil {
		d.log.Debug("some pci devices cannot be read", "error", kernelErr)
	}
	logged, heard := d.readLog()
	noLibrary := errors.New("nvml is not used under another root than /")
	if d.nvml != nil {
		var r report
		if r, noLibrary = d.byNVML(); noLibrary == nil {
			d.say("nvml", nil)
			r.addKernel(kernel)
			d.name(&r) // with what the kernel added
			d.blame(&r)
			return r, "nvml", nil
		}
	}
	lost := ""
	if d.nvml != nil && !errors.Is(noLibrary, errNVMLAbsent) {
		lost = "NVML does not answer: " + noLibrary.Error()
	}
	limited, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	r, err := d.smi.inventory(limited)
	switch {
	case err == nil && !r.noDriver:
		d.say("nvidia-smi", noLibrary)
		r.addKernel(kernel)
		d.name(&r)
		d.byLog(&r, logged, heard)
		return r, "cli", nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		d.name(&kernel)
		d.say("sysfs", errors.Join(noLibrary, err))
		d.byLog(&kernel, logged, heard)
		return d.byKernel(kernel, lost)
	}
	d.name(&kernel)
	reason := reasonTool
	if err != nil {
		reason = "nvidia-smi does not answer"
		if errors.Is(err, errNothingRead) {
			reason = errNothingRead.Error()
		}
	}
	d.say("sysfs", errors.New(reason))
	if len(kernel.gpus) == 0 && err != nil {
		return report{}, "", errors.New(reason)
	}
	d.byLog(&kernel, logged, heard)
	return d.byKernel(kernel, reason)
}

// byKernel is the reading without library and tool. Cards that the kernel lists cannot be used while something is wrong
// with the library or the tool. Where it lists none, and there were some before, it cannot be told what became of them.
func (d *Detector) byKernel(kernel report, wrong string) (report, string, error) {
	d.mu.Lock()
	had := len(d.minors) > 0
	d.mu.Unlock()
	if wrong != "" && len(kernel.gpus) == 0 && had {
		return report{}, "", errors.New(wrong)
	}
	for i := range kernel.gpus {
		first(&kernel.gpus[i].dead, wrong)
	}
	return kernel, "sysfs", nil
}

// say logs the path taken and why no better one was, once for every change.
func (d *Detector) say(path string, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.said == path {
		return
	}
	d.said = path
	d.log.Info("reading nvidia cards", "path", path, "why", why)
}

func (d *Detector) remember(r report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range r.gpus {
		if g.repeated != "" {
			d.repeated[g.identity()] = g.repeated
		}
		if g.minor == nil {
			continue
		}
		d.minors[g.identity()] = *g.minor
		for _, m := range g.migs {
			d.minors[m.identity(g)] = *g.minor
		}
	}
}

// Nodes are the device nodes of the card. They are empty when the number of its node is not known.
func (d *Detector) Nodes(card accel.Card) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	minor, ok := d.minors[card.UUID]
	if !ok {
		return nil
	}
	return []string{"/dev/nvidia" + strconv.Itoa(minor)}
}

// live reads the numbers that change, by the best path that answers.
func (d *Detector) live(ctx context.Context, cards []accel.Card) (report, error) {
	if d.nvml != nil {
		if r, err := d.byNVML(); err == nil {
			return r, nil
		}
	}
	partitions := slices.ContainsFunc(cards, func(c accel.Card) bool { return c.Form == accel.Partition })
	r, err := d.smi.sample(ctx, partitions)
	if err == nil {
		d.name(&r)
		d.watchLinks(&r)
	}
	return r, err
}

// Sample reads the live numbers of cards. A partition has its own memory; the board's heat and power are shown with
// the board only, not with each of its parts.
func (d *Detector) Sample(ctx context.Context, cards []accel.Card) (map[string]device.Sample, error) {
	r, err := d.live(ctx, cards)
	if err != nil {
		return nil, err
	}
	samples := map[string]device.Sample{}
	for _, c := range cards {
		i := slices.IndexFunc(r.gpus, func(g gpu) bool { return g.describes(c) })
		if i < 0 {
			continue
		}
		g := r.gpus[i]
		if c.Form != accel.Partition {
			samples[c.UUID] = g.sample(r)
			continue
		}
		for _, m := range g.migs {
			if m.identity(g) == c.UUID || m.sameSlot(g, c, cards) {
				samples[c.UUID] = device.Sample{MemoryUsedMiB: m.memoryUsed}
			}
		}
	}
	return samples, nil
}

// describes tells whether a reading is of the board of this card. Readings differ in what they know: the list has no
// address, the table no UUID.
func (g gpu) describes(c accel.Card) bool {
	if g.uuid != "" && g.uuid == c.UUID || g.pci != "" && g.pci == c.PCIAddress {
		return true
	}
	return g.index != nil && (g.pci == "" || c.PCIAddress == "") && *g.index == c.Index
}

// sameSlot finds a partition that the reading knows only by its place on the board: partitions are listed in the
// order of their device numbers.
func (m mig) sameSlot(g gpu, c accel.Card, cards []accel.Card) bool {
	if m.uuid != "" {
		return false
	}
	n := 0
	for _, o := range cards {
		if o.Form != accel.Partition || !g.describes(o) {
			continue
		}
		if o.UUID == c.UUID {
			return n < len(g.migs) && g.migs[n].device == m.device
		}
		n++
	}
	return false
}

// Processes lists the compute processes of each card. Processes that only draw do not count. For a partition nothing
// can be told: the tool names the board; nor for boards with one UUID, where the tool names them by it alone.
func (d *Detector) Processes(ctx context.Context, cards []accel.Card) (map[string][]int, error) {
	var r report
	err := errNVMLAbsent
	if d.nvml != nil {
		r, err = d.byNVML()
	}
	if err != nil || !r.processesKnown {
		if r, err = d.smi.readProcesses(ctx); err != nil {
			return nil, err
		}
		d.name(&r)
	}
	d.mu.Lock()
	repeated := maps.Clone(d.repeated)
	d.mu.Unlock()
	byCard := map[string][]int{}
	for _, c := range cards {
		if c.Form == accel.Partition || r.unsaid(repeated[c.UUID]) {
			continue
		}
		byCard[c.UUID] = []int{}
		for _, p := range r.processes {
			if (gpu{uuid: p.uuid, pci: p.pci, index: p.index}).describes(c) {
				byCard[c.UUID] = append(byCard[c.UUID], p.pid)
			}
		}
	}
	return byCard, nil
}
