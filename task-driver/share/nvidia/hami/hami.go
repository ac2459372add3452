// Package hami makes shares of NVIDIA cards by HAMi-core, a library that stands between a task's processes and CUDA. Every process
// of the container gets it by /etc/ld.so.preload, those of exec and of login shells too, and the limits come by
// more ways than the environment.
//
// Each share has a folder that is named for it, and in it a copy of the library as it was when the share was made: an upgrade of
// the original never reaches a task that runs.
package hami

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
)

// Name is the backend's name.
const Name = string(accel.ModeHAMi)

// DefaultLibrary is where HAMi's own charts put the library on a host.
const DefaultLibrary = "/usr/local/vgpu/libvgpu.so"

// Options are what the plugin's config and tests say.
type Options struct {
	// Library is the path of libvgpu.so on the host; empty is DefaultLibrary.
	Library string
	// Overuse is what happens to a task that holds more of the card's memory than it was given, since it came round the library.
	Overuse bronze.Policy
	Clock   clock.Clock // the system's when nil
}

// Backend makes shares by HAMi-core.
type Backend struct {
	host    share.Host
	library string
	folder  maker.Folder
	watch   *bronze.Backend
}

var (
	_ share.Backend = (*Backend)(nil)
	_ share.Fitter  = (*Backend)(nil)
	_ share.Joiner  = (*Backend)(nil)
	_ share.Keeper  = (*Backend)(nil)

	_ share.SelfTester = (*Backend)(nil)
)

// New makes the backend. It touches nothing.
func New(h share.Host, o Options) *Backend {
	if o.Library == "" {
		o.Library = DefaultLibrary
	}
	readers := map[accel.Vendor]bronze.Reader{accel.NVIDIA: bronze.NVIDIA{Tool: h.Tool}}
	return &Backend{
		host: h, library: o.Library, folder: maker.FolderOf(h, string(accel.NVIDIA), Name),
		watch: bronze.New(h, readers, bronze.Options{Overuse: o.Overuse, Clock: o.Clock}),
	}
}

// Name is the backend's name.
func (b *Backend) Name() string { return Name }

// Vendor is NVIDIA.
func (b *Backend) Vendor() accel.Vendor { return accel.NVIDIA }

// Describe says what the library enforces.
func (b *Backend) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByLibrary, Compute: share.ByLibrary, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "A library in the task's processes refuses memory beyond the share and slows kernels down to its part of compute, also when the task is alone. Programs linked statically or against musl (Alpine) do not load it, and one who means to can come round it: what a task holds is watched and told within 10 s. Compute is bound over seconds, not at every moment. All cards of one task are bound to its smallest share. Not tested on hardware by this project.",
		LimitsZH: "任务进程中的库拒绝超出份额的显存，并将计算压到其比例，即使卡上只有该任务。静态链接或基于 musl（Alpine）的程序不会加载该库，有意者可以绕过：任务的实际占用由监视发现，10 秒内告知。计算限制按秒级平均，而非每一刻。同一任务的所有卡按其中最小的份额限制。本项目未在硬件上测试。",
	}
}

// Fits refuses processes of the host: the library would have to be loaded into every process of the machine.
func (b *Backend) Fits(a share.Ask) error {
	if !a.Container {
		return maker.ErrContainerOnly
	}
	return nil
}

// Probe looks at the library.
func (b *Backend) Probe(context.Context) error {
	f, err := elf.Open(b.host.Path(b.library))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("HAMi's library is not at %s: copy libvgpu.so of Project-HAMi/HAMi-core there, or write its path as hami_library in the driver's config", b.library)
	}
	if err != nil {
		return fmt.Errorf("HAMi's library %s cannot be loaded: %w: copy it there anew", b.library, err)
	}
	kind := f.Type
	if err := f.Close(); err != nil {
		return fmt.Errorf("read HAMi's library: %w", err)
	}
	if kind != elf.ET_DYN {
		return fmt.Errorf("HAMi's library %s is no shared library (%s): copy libvgpu.so of Project-HAMi/HAMi-core there", b.library, kind)
	}
	return nil
}

// SelfTest loads the library into a program that does nothing: one for another machine, or a later C library, shows here. That it
// refuses memory can only be shown by a program of CUDA.
func (b *Backend) SelfTest(ctx context.Context) error {
	out, err := b.host.Tool.Run(ctx, "env", "LD_PRELOAD="+b.library, "true")
	if err != nil {
		return err
	}
	if out.ExitCode != 0 || strings.Contains(out.Stderr, "cannot be preloaded") || strings.Contains(out.Stderr, "symbol lookup error") {
		return fmt.Errorf("HAMi's library %s cannot be loaded on this node: status %d: %s", b.library, out.ExitCode, strings.TrimSpace(out.Stderr))
	}
	return nil
}

// Places in the container. HAMi-core opens itself by its first one, whatever path it was loaded from, locks in the second, keeps
// the memory of all processes in a file whose place is the third when the environment does not tell another, and reads
// variables from the fourth [Project-HAMi/HAMi-core libvgpu.c, utils.c, multiprocess_memory_limit.h].
const (
	placeLibrary  = "/usr/local/vgpu/libvgpu.so"
	placeLock     = "/tmp/vgpulock"
	placeRegion   = "/tmp/cudevshr.cache"
	placeOverride = "/overrideEnv"
	placeCache    = "/usr/local/vgpu/cache"
	placePreload  = "/etc/ld.so.preload"
	placeProfile  = "/etc/profile.d/00-heteroflow-share.sh"
)

// Files of a share's folder.
const (
	fileLibrary  = "libvgpu.so"
	filePreload  = "ld.so.preload"
	fileOverride = "override.env"
	fileProfile  = "profile.sh"
	fileRecord   = "share.json"
	dirCache     = "cache"
	dirLock      = "lock"
	fileRegion   = "region.cache" // in dirCache
)

// Names of variables. CUDA_DEVICE_SM_LIMIT is one value for all cards.
const (
	envMemory   = "CUDA_DEVICE_MEMORY_LIMIT"
	envSM       = "CUDA_DEVICE_SM_LIMIT"
	envRegion   = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	envPolicy   = "GPU_CORE_UTILIZATION_POLICY"
	envSelf     = "CUDA_REDIRECT"
	envVisible  = "CUDA_VISIBLE_DEVICES"
	envOrder    = "CUDA_DEVICE_ORDER"
	policyForce = "force" // the cap holds for a task that is alone, too
)

// record is what a share was made for: one of other sizes is made anew, with a region that does not know the old ones.
type record struct {
	MemoryMiB  uint64 `json:"memory_mib"`
	ComputePct int    `json:"compute_pct,omitempty"`
	Position   int    `json:"position,omitempty"`
	Of         int    `json:"of,omitempty"`
}

// Prepare writes the share's folder.
func (b *Backend) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	if err := b.Fits(a); err != nil {
		return share.Setup{}, err
	}
	if a.MemoryMiB == 0 {
		return share.Setup{}, errors.New("a share by HAMi needs its memory: write memory in the accelerator block")
	}
	if err := ctx.Err(); err != nil {
		return share.Setup{}, err
	}
	want := record{MemoryMiB: a.MemoryMiB, ComputePct: a.ComputePct, Position: a.Position, Of: a.Of}
	made, err := b.made(a.ID, want)
	if err == nil && !made {
		err = b.folder.Drop(a.ID)
	}
	if err != nil {
		return share.Setup{}, err
	}
	digest, err := b.fill(a, want)
	if err != nil {
		return share.Setup{}, errors.Join(err, b.folder.Drop(a.ID))
	}
	if !made {
		text := fmt.Sprintf("share of %s: %s", a.Card.UUID, accel.FormatMiB(a.MemoryMiB))
		if a.ComputePct > 0 {
			text += fmt.Sprintf(", %d %% of compute", a.ComputePct)
		}
		event(text + ", bound by HAMi-core " + digest)
	}
	return b.setup(a), nil
}

// made tells whether the folder is there and was made for just this. Its record is written last.
func (b *Backend) made(id share.ID, want record) (bool, error) {
	text, err := os.ReadFile(b.host.Path(b.folder.Path(id, fileRecord)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what a share was made for: %w", err)
	}
	var have record
	if err := json.Unmarshal(text, &have); err != nil {
		return false, nil // made anew
	}
	return have == want, nil
}

// fill makes what is missing in the folder, and leaves alone what is there, since a container may have it mounted.
func (b *Backend) fill(a share.Ask, want record) (digest string, err error) {
	if digest, err = b.folder.Keep(a.ID, b.library, fileLibrary); err != nil {
		return "", err
	}
	limits := b.limits(a)
	body, err := json.Marshal(want)
	if err != nil {
		return "", err
	}
	for _, f := range []struct {
		name string
		body []byte
	}{
		{filePreload, []byte(placeLibrary + "\n")}, {fileOverride, override(limits)}, {fileProfile, profile(limits)},
	} {
		if err := b.folder.Write(a.ID, f.name, f.body, 0o644); err != nil {
			return "", err
		}
	}
	// Every user of the container must be able to open what another has made, and to remove the lock of one who died, as older
	// versions of the library do: a sticky folder forbids both.
	for _, name := range []string{dirCache, dirLock} {
		if err := b.folder.Make(a.ID, name); err != nil {
			return "", err
		}
		if err := os.Chmod(b.host.Path(b.folder.Path(a.ID, name)), 0o777); err != nil { //nolint:gosec // the task's users are not known here
			return "", fmt.Errorf("open folder of a share: %w", err)
		}
	}
	if err := b.region(a.ID); err != nil {
		return "", err
	}
	return digest, b.folder.Write(a.ID, fileRecord, body, 0o644)
}

// region makes the empty file in which the library counts, so that it can be mounted; one that is in use stays. The task writes to
// its folder: what it put in the place of the file, such as a link, goes, or we and the daemon would follow it.
func (b *Backend) region(id share.ID) error {
	name := b.host.Path(b.folder.Path(id, dirCache, fileRegion))
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("clear the region of a share: %w", err)
		}
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o666) //nolint:gosec // the task's users are not known here
	if err == nil {
		err = errors.Join(f.Chmod(0o666), f.Close())
	}
	if err != nil {
		return fmt.Errorf("make the region of a share: %w", err)
	}
	return nil
}

// limits are the variables that bind every process, whichever way it gets them. The memory is for every card of the task: by
// which number the library knows a card is not known here.
func (b *Backend) limits(a share.Ask) map[string]string {
	env := map[string]string{
		envMemory: strconv.FormatUint(a.MemoryMiB, 10) + "m",
		envRegion: path.Join(placeCache, fileRegion),
		envSelf:   placeLibrary,
	}
	if a.ComputePct > 0 && a.ComputePct < 100 {
		env[envSM], env[envPolicy] = strconv.Itoa(a.ComputePct), policyForce
	}
	if a.Of > 1 {
		// The library reads numbers out of CUDA_VISIBLE_DEVICES, and takes every UUID for 0: the memory of all cards would be
		// counted on the first.
		var all []string
		for i := range a.Of {
			all = append(all, strconv.Itoa(i))
		}
		env[envVisible], env[envOrder] = strings.Join(all, ","), "PCI_BUS_ID"
	}
	return env
}

// override is the text of a file of variables: the library stops reading at the first line without "=".
func override(limits map[string]string) []byte {
	var out bytes.Buffer
	for _, name := range sorted(limits) {
		fmt.Fprintf(&out, "%s=%s\n", name, limits[name])
	}
	return out.Bytes()
}

// profile is the text of a file that login shells read. No value has a character that a shell would take for its own.
func profile(limits map[string]string) []byte {
	var out bytes.Buffer
	for _, name := range sorted(limits) {
		fmt.Fprintf(&out, "export %s='%s'\n", name, limits[name])
	}
	return out.Bytes()
}

func sorted(m map[string]string) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// setup is what the container gets.
func (b *Backend) setup(a share.Ask) share.Setup {
	env := b.limits(a)
	env[fmt.Sprintf("%s_%d", envMemory, a.Position)] = env[envMemory]
	at := func(name ...string) string { return b.folder.Path(a.ID, name...) }
	return share.Setup{Env: env, Mounts: []share.Mount{
		{Source: at(fileLibrary), Target: placeLibrary, ReadOnly: true},
		{Source: at(filePreload), Target: placePreload, ReadOnly: true},
		{Source: at(fileOverride), Target: placeOverride, ReadOnly: true},
		{Source: at(fileProfile), Target: placeProfile, ReadOnly: true},
		{Source: at(dirCache), Target: placeCache},
		{Source: at(dirCache, fileRegion), Target: placeRegion},
		{Source: at(dirLock), Target: placeLock},
	}}
}

// Join makes one setup for all cards of a task: the files of the smallest share, and its memory for all, since the library counts
// in its own order of the cards.
func (b *Backend) Join(setups []share.Setup) (share.Setup, error) {
	least := slices.MinFunc(setups, func(x, y share.Setup) int { return int(memory(x)) - int(memory(y)) })
	joined := share.Setup{Env: map[string]string{}, Mounts: least.Mounts}
	for name, value := range least.Env {
		joined.Env[name] = value
	}
	for _, s := range setups {
		if s.Env[envSM] != least.Env[envSM] {
			return share.Setup{}, fmt.Errorf("the cap of compute is one for all cards of a task (%s), and they were given %q and %q", envSM, least.Env[envSM], s.Env[envSM])
		}
		for name := range s.Env {
			if strings.HasPrefix(name, envMemory+"_") {
				joined.Env[name] = least.Env[envMemory]
			}
		}
	}
	return joined, nil
}

// memory is the limit that a setup gives in MiB.
func memory(s share.Setup) uint64 {
	mib, err := strconv.ParseUint(strings.TrimSuffix(s.Env[envMemory], "m"), 10, 40)
	if err != nil {
		return 0 // one that is not known binds most
	}
	return mib
}

// Release removes the folder. Files that a process has open go with it.
func (b *Backend) Release(_ context.Context, id share.ID) error { return b.folder.Drop(id) }

// Reconcile removes the folders of shares that are not live.
func (b *Backend) Reconcile(_ context.Context, live map[share.ID]share.Ask) error {
	return b.folder.Sweep(live)
}

// Keep watches what tasks hold.
func (b *Backend) Keep(ctx context.Context, live func() map[share.ID]share.Ask, tasks share.Tasks) error {
	return b.watch.Keep(ctx, live, tasks)
}
