// Package hygon makes virtual cards (vDCU) of Hygon cards by the file that the maker's runtime library reads in a container.
// `hy-smi virtual` makes them too, but takes back only all of a card at once, so that it cannot serve tasks that come and go;
// what was made by it is left alone.
package hygon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// Places of the maker's driver.
const (
	confFolder = "/etc/vdev/docker" // in a container
	dtk        = "/opt/dtk"         // the toolkit, where the node has it
	dtkAt      = "/opt/hygondriver"
	mkfd       = "/dev/mkfd"
)

// strangers are the files of virtual cards that others made on this node.
var strangers = []string{"/etc/vdev/vdev*.conf", "/usr/local/vgpu/dcu/*/vdev*.conf"}

var tools = []string{"/opt/hyhal/bin/hy-smi", "hy-smi"}

// limit is how many virtual cards there are on a card at most.
const limit = 4

// VDCUs makes virtual cards. All that it makes is one file for each in the driver's state folder.
type VDCUs struct {
	host   share.Host
	folder maker.Folder
}

var _ share.Backend = (*VDCUs)(nil)

// New makes the backend.
func New(h share.Host) *VDCUs {
	return &VDCUs{host: h, folder: maker.FolderOf(h, string(accel.Hygon), accel.ModeVDCU)}
}

// Name is vdcu.
func (b *VDCUs) Name() string { return accel.ModeVDCU }

// Vendor is Hygon.
func (b *VDCUs) Vendor() accel.Vendor { return accel.Hygon }

// Describe says what a virtual card keeps apart.
func (b *VDCUs) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByLibrary, Compute: share.ByLibrary, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "The maker's runtime library in the container refuses memory above the share and keeps to its compute units; a program with another runtime is not bound. Shares with a compute limit have units of their own, those without use all. At most 4 a card, one a container, driver 6.3.8 or later. The library tells containers apart by their control group. Not tested on hardware by this project.",
		LimitsZH: "由容器内厂商运行时库限制显存和计算单元，使用其他运行时的程序不受限制。设置了算力上限的切片独占计算单元，未设置的可使用全部。每卡最多 4 个，每个容器 1 个，驱动不低于 6.3.8。运行时库按控制组区分容器。本项目未在真实硬件上验证。",
	}
}

// Probe wants the tool, the node of the driver and a version that has virtual cards.
func (b *VDCUs) Probe(ctx context.Context) error {
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return fmt.Errorf("hy-smi is not found: install the Hygon driver, which brings /opt/hyhal/bin/hy-smi (%w)", err)
	}
	if !maker.Exists(b.host, mkfd) {
		return fmt.Errorf("%s is not there: sudo modprobe hycu (hydcu with an older driver)", mkfd)
	}
	version, err := b.version(ctx, tool)
	if err != nil {
		return err
	}
	if !atLeast(version, 6, 3, 8) {
		return fmt.Errorf("the driver is version %s, virtual cards need 6.3.8 or later: upgrade the Hygon driver", version)
	}
	if len(b.units(ctx, tool)) == 0 {
		return errors.New("hy-smi virtual -show-device-info lists no card: run it, and upgrade the Hygon driver where it does not know it")
	}
	return nil
}

var versionText = regexp.MustCompile(`\d+\.\d+\.\d+`)

// version is the driver's, by its module, else by the tool.
func (b *VDCUs) version(ctx context.Context, tool string) (string, error) {
	for _, module := range []string{"hycu", "hydcu"} {
		if body, err := os.ReadFile(b.host.Path("/sys/module", module, "version")); err == nil {
			if v := versionText.FindString(string(body)); v != "" {
				return v, nil
			}
		}
	}
	out, err := maker.Run(ctx, b.host.Tool, tool, "--showdriverversion")
	if v := versionText.FindString(out); err == nil && v != "" {
		return v, nil
	}
	return "", errors.Join(errors.New("hy-smi --showdriverversion tells no version: load the driver (sudo modprobe hycu)"), err)
}

// atLeast compares a version of three numbers.
func atLeast(version string, want ...int) bool {
	for i, part := range strings.SplitN(version, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil || n < want[i] {
			return false
		}
		if n > want[i] {
			return true
		}
	}
	return true
}

// units asks how many compute units each card has; empty when the tool cannot tell.
func (b *VDCUs) units(ctx context.Context, tool string) map[int]int {
	out, err := maker.Run(ctx, b.host.Tool, tool, "virtual", "-show-device-info")
	if err != nil {
		b.host.Logger().Debug("compute units not told", "error", err)
		return nil
	}
	return units(out)
}

// Prepare writes the file of the virtual card.
func (b *VDCUs) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	switch {
	case !a.Container:
		return share.Setup{}, maker.ErrContainerOnly
	case a.Of > 1:
		return share.Setup{}, fmt.Errorf("a container gets one virtual card of Hygon and this task asks for %d: ask for whole cards, or for 1", a.Of)
	case a.Card.PCI == "":
		return share.Setup{}, fmt.Errorf("the PCI address of card %s is not known, by which its virtual cards are made: look at the node with heteroflow doctor", a.Card.UUID)
	}
	tool, err := maker.Find(b.host.Tool, tools...)
	if err != nil {
		return share.Setup{}, err
	}
	cu := b.units(ctx, tool)[a.Card.Index]
	if cu == 0 {
		return share.Setup{}, fmt.Errorf("hy-smi virtual -show-device-info does not tell the compute units of card %d", a.Card.Index)
	}
	rule := accel.Rounding{Mode: accel.ModeVDCU, StepMiB: 1, Parts: cu, Max: limit}
	s, err := maker.Fit(rule, a)
	if err != nil {
		return share.Setup{}, err
	}
	c, made, err := b.place(a, cu, s)
	if err != nil {
		return share.Setup{}, err
	}
	if !made {
		event(fmt.Sprintf("virtual DCU of card %d: %d of %d compute units, %s", a.Card.Index, c.Mask.count(), cu, accel.FormatMiB(c.MiB)))
		if err := b.folder.Write(a.ID, fileName, c.text(), 0o644); err != nil {
			return share.Setup{}, errors.Join(err, b.folder.Drop(a.ID))
		}
	}
	// The container sees one card, whose number is 0.
	setup := share.Setup{
		Env:    map[string]string{"HIP_VISIBLE_DEVICES": "0"},
		Mounts: []share.Mount{{Source: b.folder.Path(a.ID), Target: confFolder, ReadOnly: true}},
	}
	if maker.Exists(b.host, dtk) {
		setup.Mounts = append(setup.Mounts, share.Mount{Source: dtk, Target: dtkAt, ReadOnly: true})
	}
	return setup, nil
}

// place finds the units and the pipe of a virtual card; made is true when the card is there as it should be.
func (b *VDCUs) place(a share.Ask, cu int, s accel.Share) (c conf, made bool, err error) {
	own, others, err := b.onCard(a)
	if err != nil {
		return conf{}, false, err
	}
	n := s.Parts
	if n == 0 {
		n = cu // no cap: all units, also those of others
	}
	if own != nil && own.MiB == s.MemoryMiB && own.Mask.count() == n && own.PCI == strings.ToLower(a.Card.PCI) {
		return *own, true, nil
	}
	if len(others) >= limit {
		return conf{}, false, fmt.Errorf("card %d has %d virtual DCUs, which is all it can have: it is tried again when one of them has ended", a.Card.Index, len(others))
	}
	var taken mask
	pipes := map[int]bool{}
	for _, o := range others {
		pipes[o.Pipe] = true
		if o.Mask.count() < cu {
			taken = taken.or(o.Mask)
		}
	}
	if n == cu {
		taken = mask{}
	}
	c = conf{PCI: strings.ToLower(a.Card.PCI), MiB: s.MemoryMiB}
	for pipes[c.Pipe] {
		c.Pipe++
	}
	var ok bool
	if c.Mask, ok = pick(cu, n, taken); !ok {
		return conf{}, false, fmt.Errorf("card %d has %d of %d compute units free, %d are needed: ask for less compute", a.Card.Index, c.Mask.count(), cu, n)
	}
	return c, false, nil
}

// onCard are the virtual cards of a card: the ask's own, nil when it is not there, and the others. A file that cannot be read
// may be of this card: nothing is placed beside it.
func (b *VDCUs) onCard(a share.Ask) (own *conf, others []conf, err error) {
	ids, err := b.folder.IDs()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		c, err := b.read(b.folder.Path(id, fileName))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, nil, err
		case id == a.ID:
			own = &c
		case c.PCI == strings.ToLower(a.Card.PCI):
			others = append(others, c)
		}
	}
	for _, pattern := range strangers {
		paths, err := filepath.Glob(b.host.Path(pattern))
		if err != nil {
			return nil, nil, err
		}
		for _, path := range paths {
			body, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var c conf
			if err == nil {
				c, err = parseConf(string(body))
			}
			if err != nil {
				return nil, nil, fmt.Errorf("the virtual card of %s cannot be told, so that none is made beside it: take it back by what made it, such as hy-smi virtual -d DEVICE -destroy-vdevice (%w)", path, err)
			}
			if c.PCI == strings.ToLower(a.Card.PCI) {
				others = append(others, c)
			}
		}
	}
	return own, others, nil
}

func (b *VDCUs) read(path string) (conf, error) {
	body, err := os.ReadFile(b.host.Path(path))
	if err != nil {
		return conf{}, err
	}
	c, err := parseConf(string(body))
	if err != nil {
		return conf{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// Release removes the file.
func (b *VDCUs) Release(_ context.Context, id share.ID) error { return b.folder.Drop(id) }

// Reconcile removes the files of virtual cards that are not live.
func (b *VDCUs) Reconcile(_ context.Context, live map[share.ID]share.Ask) error {
	return b.folder.Sweep(live)
}
