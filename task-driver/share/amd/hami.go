// Package amd makes shares of AMD cards: compute by a mask of compute units that ROCm's runtime reads, memory by HAMi's
// library. Partitions of a board (CPX and the like) are made by the node's administrator and given whole; they need no
// backend.
package amd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// Places of HAMi's library on a node and in a container (Project-HAMi/amd-device-plugin).
const (
	library   = "/usr/local/vgpu/libamvgpu.so"
	sharedAt  = "/usr/local/vgpu/shared"
	cacheName = "hip.cache"
	topNodes  = "/sys/class/kfd/kfd/topology/nodes"
)

// Variables of ROCm's runtime and of the library. The library is brought in by LD_AUDIT: with LD_PRELOAD the calls within
// HIP come back to it, and HIP of ROCm 7 breaks.
const (
	envMask  = "HSA_CU_MASK"
	envLimit = "HIP_DEVICE_MEMORY_LIMIT_" // and the number of the device in the task
	envCache = "HIP_DEVICE_MEMORY_SHARED_CACHE"
	envAudit = "LD_AUDIT"
)

// Slices is the backend.
type Slices struct {
	host   share.Host
	folder maker.Folder
	notes  share.Notes[slice]
}

// slice is what is remembered of one: which parts of the card are its own.
type slice struct {
	Card  string `json:"card"` // UUID
	Atoms []int  `json:"atoms,omitempty"`
	Atom  int    `json:"atom,omitempty"` // units of one part
}

var (
	_ share.Backend = (*Slices)(nil)
	_ share.Joiner  = (*Slices)(nil)
)

// New makes the backend.
func New(h share.Host) *Slices {
	brand := string(accel.AMD)
	return &Slices{host: h, folder: maker.FolderOf(h, brand, accel.ModeHAMi), notes: share.NotesOf[slice](h, brand, accel.ModeHAMi)}
}

// Name is hami.
func (b *Slices) Name() string { return accel.ModeHAMi }

// Vendor is AMD.
func (b *Slices) Vendor() accel.Vendor { return accel.AMD }

// Describe says what is kept apart.
func (b *Slices) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByLibrary, Compute: share.ByLibrary, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "Memory is refused by a library that the loader brings in (LD_AUDIT), which needs an image with glibc 2.34 or later: programs of other images, and static ones, are not bound. Shares with a compute limit have compute units of their own (HSA_CU_MASK); a process that changes its environment is not bound, which login shells do. Containers only. Not tested on hardware by this project.",
		LimitsZH: "显存由加载器引入的库（LD_AUDIT）限制，镜像需要 glibc 2.34 及以上，其他镜像和静态程序不受限制。设置了算力上限的切片独占计算单元（HSA_CU_MASK），自行修改环境变量的进程（如登录 shell）不受限制。仅限容器。本项目未在真实硬件上验证。",
	}
}

// Probe wants the library and the kernel's topology.
func (b *Slices) Probe(context.Context) error {
	if !maker.Exists(b.host, library) {
		return fmt.Errorf("HAMi's library for AMD is not on this node: put libamvgpu.so of Project-HAMi's amd-hami-core at %s", library)
	}
	if !maker.Exists(b.host, topNodes) {
		return fmt.Errorf("%s is not there: sudo modprobe amdgpu", topNodes)
	}
	return nil
}

// Prepare keeps the library for the task, and tells it its memory and its compute units.
func (b *Slices) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	switch {
	case !a.Container:
		return share.Setup{}, maker.ErrContainerOnly
	case a.MemoryMiB == 0:
		return share.Setup{}, errors.New("a slice needs memory: write memory in the accelerator block")
	}
	units, digest, err := b.make(a)
	if err != nil {
		undo, cancel := maker.Undoing(ctx)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	said := "all compute units"
	setup := share.Setup{
		Env: map[string]string{
			envLimit + strconv.Itoa(a.Position): strconv.FormatUint(a.MemoryMiB, 10) + "m",
			envCache:                            path.Join(sharedAt, cacheName),
			envAudit:                            library,
		},
		Mounts: []share.Mount{
			{Source: b.folder.Path(a.ID, "libamvgpu.so"), Target: library, ReadOnly: true},
			{Source: b.folder.Path(a.ID, "shared"), Target: sharedAt},
		},
	}
	if a.Of <= 1 {
		// The runtime numbers the cards that the container can open, and HIP those that the runtime shows: with one it is 0 in
		// both. In what order it numbers several is not told.
		setup.Env["ROCR_VISIBLE_DEVICES"], setup.Env["HIP_VISIBLE_DEVICES"] = "0", "0"
	}
	if units != "" {
		setup.Env[envMask] = strconv.Itoa(a.Position) + ":" + units
		said = "compute units " + units
	}
	event(fmt.Sprintf("slice of card %s: %s and %s, by HAMi's library %s", a.Card.UUID, accel.FormatMiB(a.MemoryMiB), said, digest))
	return setup, nil
}

// make notes the compute units and makes what the task mounts.
func (b *Slices) make(a share.Ask) (units, digest string, err error) {
	notes, err := b.notes.All()
	if err != nil {
		return "", "", err
	}
	own, units, err := b.place(a, notes)
	if err != nil {
		return "", "", err
	}
	if err := b.notes.Put(a.ID, own); err != nil {
		return "", "", err
	}
	if digest, err = b.folder.Keep(a.ID, library, "libamvgpu.so"); err != nil {
		return "", "", err
	}
	return units, digest, b.folder.Make(a.ID, "shared")
}

// place finds the parts of the card that a slice has of its own; none and no text when its compute is not limited.
func (b *Slices) place(a share.Ask, notes map[share.ID]slice) (slice, string, error) {
	own := slice{Card: a.Card.UUID}
	if a.ComputePct == 0 {
		return own, "", nil
	}
	t, err := topologyOf(b.host, a.Card.PCI)
	if err != nil {
		return slice{}, "", err
	}
	n, err := t.part(a.ComputePct)
	if err != nil {
		return slice{}, "", err
	}
	own.Atom = t.atom()
	if old := notes[a.ID]; old.Card == own.Card && old.Atom == own.Atom && len(old.Atoms) == n {
		return old, t.ranges(old.Atoms), nil
	}
	taken := map[int]bool{}
	for id, other := range notes {
		if id != a.ID && other.Card == own.Card {
			for _, atom := range other.Atoms {
				taken[atom] = true
			}
		}
	}
	for atom := range t.atoms() {
		if len(own.Atoms) < n && !taken[atom] {
			own.Atoms = append(own.Atoms, atom)
		}
	}
	if len(own.Atoms) < n {
		return slice{}, "", fmt.Errorf("card %s has %d of %d compute units free, %d are needed: ask for less compute", a.Card.UUID, len(own.Atoms)*t.atom(), t.Units, n*t.atom())
	}
	return own, t.ranges(own.Atoms), nil
}

// Join puts the masks of several cards into one variable; all processes of the task use the first card's library.
func (b *Slices) Join(setups []share.Setup) (share.Setup, error) {
	joined := setups[0]
	joined.Env = map[string]string{}
	var masks []string
	for _, s := range setups {
		for name, value := range s.Env {
			if name != envMask {
				joined.Env[name] = value
			}
		}
		if mask := s.Env[envMask]; mask != "" {
			masks = append(masks, mask)
		}
	}
	slices.Sort(masks)
	if len(masks) > 0 {
		joined.Env[envMask] = strings.Join(masks, ";")
	}
	return joined, nil
}

// Release removes what the task mounted, and gives back its compute units.
func (b *Slices) Release(_ context.Context, id share.ID) error {
	if err := b.folder.Drop(id); err != nil {
		return err
	}
	return b.notes.Drop(id)
}

// Reconcile removes what slices that are not live have left.
func (b *Slices) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	notes, err := b.notes.All()
	problems := []error{err, b.folder.Sweep(live)}
	for id := range notes {
		if _, is := live[id]; !is {
			problems = append(problems, b.Release(ctx, id))
		}
	}
	return errors.Join(problems...)
}
