package ascend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// Where HAMi's library lies on a node, and where it looks in a container (Project-HAMi/ascend-device-plugin).
const (
	library     = "/usr/local/hami-vnpu-core/libvnpu.so"
	inContainer = "/hami-vnpu-core"
	regionAt    = "/hami-shared-region"
	ownAt       = "/hami-vnpu-shmem"
	preloadAt   = "/etc/ld.so.preload"
)

// Slices cuts slices of a chip by HAMi's library in the task's processes, which the loader of every process of the container
// brings in. All that it makes lies in the driver's state folder.
type Slices struct {
	host    share.Host
	folder  maker.Folder
	notes   share.Notes[slice]
	vnpus   share.Notes[note] // of the other backend
	regions string            // folder of the files by which the slices of one chip see each other
}

// slice is what is remembered of one: the chip, whose region goes with its last slice.
type slice struct {
	Device int `json:"device"`
}

var _ share.Backend = (*Slices)(nil)

// NewSlices makes the backend.
func NewSlices(h share.Host) *Slices {
	brand := string(accel.Ascend)
	return &Slices{
		host: h, folder: maker.FolderOf(h, brand, accel.ModeHAMi), notes: sliceNotes(h), vnpus: vnpuNotes(h),
		regions: filepath.Join(h.Dir, brand, accel.ModeHAMi, "regions"),
	}
}

// Name is hami.
func (b *Slices) Name() string { return accel.ModeHAMi }

// Vendor is Ascend.
func (b *Slices) Vendor() accel.Vendor { return accel.Ascend }

// Describe says what the library keeps apart.
func (b *Slices) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByLibrary, Compute: share.ByLibrary, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "A library in every process of the container refuses memory above the share and waits its turn for compute; programs linked statically are not bound, nor are images without glibc. The slices of a chip see each other in one shared file. One card a task. Not tested on hardware by this project.",
		LimitsZH: "由容器内每个进程加载的库限制显存并按份额轮流使用算力；静态链接的程序和非 glibc 镜像不受限制。同一芯片的切片共用一个共享文件。每个任务只能使用一张卡。本项目未在真实硬件上验证。",
	}
}

// Probe wants the library.
func (b *Slices) Probe(context.Context) error {
	if !maker.Exists(b.host, library) {
		return fmt.Errorf("HAMi's vNPU library is not on this node: put libvnpu.so of Project-HAMi's hami-vnpu-core at %s", library)
	}
	return nil
}

func (b *Slices) region(device int) string {
	return filepath.Join(b.regions, "davinci"+strconv.Itoa(device))
}

// Prepare keeps the library for the task, and tells it the limits.
func (b *Slices) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	switch {
	case !a.Container:
		return share.Setup{}, maker.ErrContainerOnly
	case a.Of > 1:
		return share.Setup{}, fmt.Errorf("HAMi's vNPU library binds one card of a task and this one asks for %d: ask for whole cards, or for 1", a.Of)
	case a.MemoryMiB == 0:
		return share.Setup{}, errors.New("a slice needs memory: write memory in the accelerator block")
	}
	device := maker.NodeNumber(a.Card, "/dev/davinci")
	digest, err := b.make(a.ID, device)
	if err != nil {
		undo, cancel := maker.Undoing(ctx)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.Release(undo, a.ID))
	}
	event(fmt.Sprintf("slice of NPU device %d: %s, by HAMi's library %s", device, accel.FormatMiB(a.MemoryMiB), digest))
	registry := strconv.Itoa(device) + "_global_registry"
	setup := share.Setup{
		Env: map[string]string{
			"NPU_MEM_QUOTA":             strconv.FormatUint(a.MemoryMiB, 10),
			"NPU_GLOBAL_SHM_PATH":       path.Join(regionAt, registry),
			"NPU_LOCAL_SHM_PATH":        path.Join(ownAt, "vnpu_local_shmem"),
			"ASCEND_RT_VISIBLE_DEVICES": "0",
		},
		Mounts: []share.Mount{
			{Source: b.folder.Path(a.ID, "core"), Target: inContainer, ReadOnly: true},
			{Source: b.folder.Path(a.ID, "ld.so.preload"), Target: preloadAt, ReadOnly: true},
			{Source: b.folder.Path(a.ID, "shmem"), Target: ownAt},
			{Source: b.region(device), Target: regionAt},
		},
	}
	if a.ComputePct > 0 {
		setup.Env["NPU_PRIORITY"] = strconv.Itoa(a.ComputePct)
	}
	return setup, nil
}

// make makes what the task mounts. A slice of this ID on another chip is given back before.
func (b *Slices) make(id share.ID, device int) (string, error) {
	notes, err := b.notes.All()
	if err != nil {
		return "", err
	}
	if old, known := notes[id]; known && old.Device != device {
		if err := b.drop(id, notes); err != nil {
			return "", err
		}
	}
	if err := b.notes.Put(id, slice{Device: device}); err != nil {
		return "", err
	}
	divided, err := b.vnpus.All()
	if err != nil {
		return "", err
	}
	for _, n := range divided {
		if n.Device == device {
			return "", fmt.Errorf("%s is divided in virtual NPUs: it can be shared in slices when their tasks have ended", n.place())
		}
	}
	if err := os.MkdirAll(b.host.Path(b.region(device)), 0o755); err != nil {
		return "", fmt.Errorf("make the region of a chip: %w", err)
	}
	if err := os.Chmod(b.host.Path(b.region(device)), 0o1777); err != nil { //nolint:gosec // tasks of any user meet in it
		return "", fmt.Errorf("open the region of a chip: %w", err)
	}
	digest, err := b.folder.Keep(id, library, "core/libvnpu.so")
	if err != nil {
		return "", err
	}
	if err := b.folder.Write(id, "ld.so.preload", []byte(path.Join(inContainer, "libvnpu.so")+"\n"), 0o644); err != nil {
		return "", err
	}
	return digest, b.folder.Make(id, "shmem")
}

// Release removes what the task mounted, and the chip's region with the last slice of it.
func (b *Slices) Release(_ context.Context, id share.ID) error {
	notes, err := b.notes.All()
	if err != nil {
		return err
	}
	return b.drop(id, notes)
}

func (b *Slices) drop(id share.ID, notes map[share.ID]slice) error {
	if err := b.folder.Drop(id); err != nil {
		return err
	}
	own, known := notes[id]
	delete(notes, id)
	if err := b.sweep(notes); err != nil {
		if known {
			notes[id] = own
		}
		return err
	}
	return b.notes.Drop(id)
}

// sweep removes the regions of chips that no slice is of. They lie in the driver's own folder: all of them are ours.
func (b *Slices) sweep(notes map[share.ID]slice) error {
	regions, err := filepath.Glob(b.host.Path(b.regions, "*"))
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, s := range notes {
		used[b.host.Path(b.region(s.Device))] = true
	}
	for _, region := range regions {
		if used[region] {
			continue
		}
		if err := os.RemoveAll(region); err != nil {
			return fmt.Errorf("remove the region of a chip: %w", err)
		}
	}
	return nil
}

// Reconcile removes what slices that are not live have left.
func (b *Slices) Reconcile(_ context.Context, live map[share.ID]share.Ask) error {
	notes, err := b.notes.All()
	if err != nil {
		return err
	}
	problems := []error{b.folder.Sweep(live)}
	for id := range notes {
		if _, is := live[id]; !is {
			problems = append(problems, b.drop(id, notes))
		}
	}
	return errors.Join(append(problems, b.sweep(notes))...)
}
