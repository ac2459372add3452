package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// Propagation of a mount: Nomad's words and Docker's.
var propagations = map[string]string{
	"": "", "private": "rprivate", "host-to-task": "rslave", "bidirectional": "rshared",
}

// mounts are the task's folders, what Nomad hands over (volumes, device plugins), and what the config asks for. dataRoot is
// where the daemon keeps its own; empty when it has not been asked yet.
func (r *dockerRuntime) mounts(p *plan, dataRoot string) ([]docker.Mount, error) {
	taskDir := filepath.Join(p.cfg.GetAllocDir(), p.cfg.GetName())
	out := []docker.Mount{
		{Type: "bind", Source: filepath.Join(p.cfg.GetAllocDir(), "alloc"), Target: "/alloc"},
		{Type: "bind", Source: filepath.Join(taskDir, "local"), Target: "/local"},
		{Type: "bind", Source: filepath.Join(taskDir, "secrets"), Target: "/secrets"},
	}
	for _, m := range out {
		if err := noLink(p.cfg.GetAllocDir(), m.Source); err != nil {
			return nil, err
		}
	}
	for _, m := range p.cfg.GetMounts() {
		propagation, ok := propagations[m.GetPropagationMode()]
		if !ok {
			return nil, fmt.Errorf("volume_mount: propagation_mode %q is not known: write private, host-to-task or bidirectional", m.GetPropagationMode())
		}
		out = append(out, docker.Mount{Type: "bind", Source: m.GetHostPath(), Target: m.GetTaskPath(), ReadOnly: m.GetReadonly(), Propagation: propagation})
	}
	for _, text := range p.tc.Volumes {
		m, err := parseVolume(text)
		if err == nil && m.Type == "volume" {
			m.Driver = p.tc.VolumeDriver
		}
		if err == nil {
			m, err = r.allowed(p, m, dataRoot)
		}
		if err != nil {
			return nil, fmt.Errorf("volumes: %w", err)
		}
		out = append(out, m)
	}
	for _, c := range p.tc.Mounts {
		m, err := r.allowed(p, c.mount(), dataRoot)
		if err != nil {
			return nil, fmt.Errorf("mount: %w", err)
		}
		out = append(out, m)
	}
	for i, m := range out {
		if access.GuardedTarget(m.Target) {
			return nil, fmt.Errorf("mount: target %s tells a maker's runtime which cards to show: mount it elsewhere", m.Target)
		}
		if m.Type == "bind" {
			out[i].SELinux = r.options.SELinux
		}
	}
	return out, nil
}

func (c MountConfig) mount() docker.Mount {
	m := docker.Mount{Type: c.Type, Source: c.Source, Target: c.Target, ReadOnly: c.ReadOnly}
	if c.BindOptions != nil {
		m.Propagation = c.BindOptions.Propagation
	}
	if c.TmpfsOptions != nil {
		m.SizeBytes, m.Mode = c.TmpfsOptions.Size, uint32(c.TmpfsOptions.Mode)
	}
	if v := c.VolumeOptions; v != nil {
		m.NoCopy, m.Labels = v.NoCopy, v.Labels
		if v.DriverConfig != nil {
			m.Driver, m.DriverOptions = v.DriverConfig.Name, v.DriverConfig.Options
		}
	}
	return m
}

// parseVolume reads "source:target" or "source:target:ro".
func parseVolume(text string) (docker.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return docker.Mount{}, fmt.Errorf(`%q is not a volume: write "source:/target", with ":ro" behind it to mount it read-only`, text)
	}
	m := docker.Mount{Type: "bind", Source: parts[0], Target: parts[1]}
	if !strings.Contains(parts[0], "/") && !strings.HasPrefix(parts[0], ".") {
		m.Type = "volume"
	}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.ReadOnly = true
		case "rw":
		default:
			return docker.Mount{}, fmt.Errorf("%q has the unknown mode %q: write ro or rw", text, parts[2])
		}
	}
	return m, nil
}

// forbidden are places of the host that no task mounts: with them it would rule the node or see every card.
var forbidden = []string{"/dev", "/proc", "/sys", "/boot", "/etc", "/root", "/var/lib/docker", "/var/lib/containerd", "/run", "/var/run"}

// allowed checks a mount the job asks for. A relative source lies in the task's folder and may neither leave it (nor
// the shared folder of the allocation) by dots nor by links; everything else needs the administrator's leave.
func (r *dockerRuntime) allowed(p *plan, m docker.Mount, dataRoot string) (docker.Mount, error) {
	switch {
	case m.Type == "tmpfs":
		return m, nil
	case m.Type == "volume":
		if !r.options.VolumesEnabled {
			return m, fmt.Errorf("volume %q: volumes of the node are switched off: use a relative path below the task's folder, or have docker { volumes_enabled = true } set in the plugin's config", m.Source)
		}
		if len(m.DriverOptions) > 0 && !r.options.AllowPrivileged {
			return m, errors.New("volume_options.driver_config can mount any folder of the node: leave it out, or have docker { allow_privileged = true } set in the plugin's config")
		}
		return m, nil
	}
	if !filepath.IsAbs(m.Source) {
		return r.inside(p, m)
	}
	source, err := realPath(filepath.Clean(m.Source))
	if err != nil {
		return m, err
	}
	sockets, err := r.sockets()
	if err != nil {
		return m, err
	}
	if slices.Contains(sockets, source) || filepath.Base(source) == "docker.sock" {
		if !r.options.AllowDockerSocket {
			return m, errDockerSocket
		}
		return m, nil
	}
	if !r.options.VolumesEnabled {
		return m, fmt.Errorf("source %s: folders of the node are switched off: use a relative path below the task's folder, or have docker { volumes_enabled = true } set in the plugin's config", m.Source)
	}
	if r.options.AllowPrivileged {
		return m, nil
	}
	// So are the folders of other allocations, the driver's own and the daemon's: what is in them is shared with others.
	for _, place := range append([]string{filepath.Dir(p.cfg.GetAllocDir()), r.stateDir, r.modelsDir, dataRoot}, forbidden...) {
		if place == "" {
			continue
		}
		real, err := realPath(place)
		if err != nil {
			return m, err
		}
		if overlap(place, source) || overlap(real, source) {
			return m, fmt.Errorf("source %s: %s belongs to the node itself: mount a folder made for the task, or have docker { allow_privileged = true } set in the plugin's config", m.Source, place)
		}
	}
	if !r.options.AllowDockerSocket && slices.ContainsFunc(sockets, func(socket string) bool { return within(source, socket) }) {
		return m, errDockerSocket
	}
	return m, nil
}

var errDockerSocket = errors.New("the Docker socket would give the task the whole node: leave it out, or have docker { allow_docker_socket = true } set in the plugin's config")

// sockets are the paths of the daemon's socket on this machine: as it is configured, and where that leads.
func (r *dockerRuntime) sockets() ([]string, error) {
	socket, ok := strings.CutPrefix(r.options.Endpoint, "unix://")
	if !ok {
		return nil, nil
	}
	real, err := realPath(filepath.Clean(socket))
	return []string{filepath.Clean(socket), real}, err
}

// overlap reports whether one of two clean paths lies in the other.
func overlap(a, b string) bool { return within(a, b) || within(b, a) }

// inside places a relative source in the task's folder.
func (r *dockerRuntime) inside(p *plan, m docker.Mount) (docker.Mount, error) {
	taskDir := filepath.Join(p.cfg.GetAllocDir(), p.cfg.GetName())
	shared := filepath.Join(p.cfg.GetAllocDir(), "alloc")
	m.Source = filepath.Join(taskDir, m.Source)
	real, err := realPath(m.Source)
	if err != nil {
		return m, err
	}
	for _, root := range []string{taskDir, shared} {
		realRoot, err := realPath(root)
		if err != nil {
			return m, err
		}
		if !within(root, m.Source) || !within(realRoot, real) {
			continue
		}
		if root == shared && m.Source != shared && !r.options.VolumesEnabled {
			return m, alone(p)
		}
		return m, nil
	}
	return m, fmt.Errorf("source %s leaves the task's folder: write a path below it, such as \"local/data\", or ../alloc/data for the allocation's shared folder", strings.TrimPrefix(m.Source, p.cfg.GetAllocDir()+"/"))
}

// noLink refuses a folder that Nomad made in an allocation's when there is a link in its place: a task that was given its whole
// folder can put one there, and the daemon would follow it at the next start.
func noLink(allocDir, folder string) error {
	realDir, err := realPath(allocDir)
	if err != nil {
		return err
	}
	real, err := realPath(folder)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(allocDir, folder)
	if err != nil {
		return fmt.Errorf("look at %s: %w", folder, err)
	}
	if real != filepath.Join(realDir, rel) {
		return fmt.Errorf("%s is a link to %s: the task put it in the place of a folder of its own, stop the allocation", folder, real)
	}
	return nil
}

// alone refuses what lies in the shared folder of an allocation with other tasks: they write to it, and could put a link in the
// place of a folder after it was looked at and before the daemon mounts it.
func alone(p *plan) error {
	entries, err := os.ReadDir(p.cfg.GetAllocDir())
	if err != nil {
		return fmt.Errorf("look for the allocation's other tasks: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); e.IsDir() && name != "alloc" && name != p.cfg.GetName() {
			return fmt.Errorf("a folder below ../alloc can be exchanged by task %q while it is mounted: leave it out, all of ../alloc is at /alloc in the container (such as /alloc/data), or have docker { volumes_enabled = true } set in the plugin's config", name)
		}
	}
	return nil
}

// realPath follows the links of the part of a path that exists.
func realPath(path string) (string, error) {
	rest := ""
	for at := path; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("look at %s: %w", path, err)
		}
		if _, err := os.Lstat(at); err == nil {
			return "", fmt.Errorf("%s is a link to nowhere", at)
		}
		if at == filepath.Dir(at) {
			return path, nil
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// within reports whether a clean path is a folder or lies below it.
func within(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
