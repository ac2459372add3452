package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// accessCards are the task's cards as package access wants them.
func (p *plan) accessCards() []access.Card {
	var out []access.Card
	for _, ask := range p.share.asks {
		s := p.setup.Cards[ask.Card.UUID]
		out = append(out, access.Card{
			Vendor: ask.Vendor, UUID: ask.Card.UUID, Index: ask.Card.Index, PCI: ask.Card.PCI, Part: ask.Form == accel.Partition, Nodes: ask.Card.Nodes,
			Visible: s.Visible, Extra: s.Nodes, Instead: s.Instead, Runtime: s.Runtime,
		})
	}
	return out
}

// applyAccess puts in what the cards need. Where the job mounts something at a place of theirs or below it, theirs stays.
func applyAccess(c *docker.Container, a access.Access) {
	for _, n := range a.Nodes {
		c.Devices = slices.DeleteFunc(c.Devices, func(d docker.Device) bool { return d.Path == n.Inside })
		c.Devices = append(c.Devices, docker.Device{HostPath: n.Host, Path: n.Inside, Permissions: n.Permissions})
	}
	for _, m := range a.Mounts {
		c.Mounts = replaceMount(c.Mounts, docker.Mount{Type: "bind", Source: m.Path, Target: m.Path, ReadOnly: true})
	}
	for _, g := range a.Groups {
		if !slices.Contains(c.GroupAdd, g) {
			c.GroupAdd = append(slices.Clone(c.GroupAdd), g)
		}
	}
	c.CDI = a.CDI
	if a.Runtime != "" {
		c.Runtime = a.Runtime
	}
}

// replaceMount puts a mount in the place of what is at its target and below it. Of two that lie in each other the outer one is
// to come first.
func replaceMount(mounts []docker.Mount, m docker.Mount) []docker.Mount {
	mounts = slices.DeleteFunc(slices.Clone(mounts), func(have docker.Mount) bool {
		return within(filepath.Clean(m.Target), filepath.Clean(have.Target))
	})
	return append(mounts, m)
}

// unset are the image's variables that only the driver may set: a name without a value takes them away.
func unset(image docker.Image, env map[string]string) []string {
	var out []string
	for _, pair := range image.Env {
		name, _, _ := strings.Cut(pair, "=")
		if _, ours := env[name]; !ours && (access.IsGuarded(name) || accel.IsVisibleVar(name)) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// devices are the nodes that Nomad's device plugins ask for and those of the host that the job names. Nodes of cards
// come from a grant alone.
func (r *dockerRuntime) devices(p *plan) ([]docker.Device, error) {
	var out []docker.Device
	add := func(d docker.Device) {
		if d.Path == "" {
			d.Path = d.HostPath
		}
		if d.Permissions == "" {
			d.Permissions = "rwm"
		}
		if !slices.ContainsFunc(out, func(have docker.Device) bool { return have.Path == d.Path }) {
			out = append(out, d)
		}
	}
	for _, d := range p.cfg.GetDevices() {
		add(docker.Device{HostPath: d.GetHostPath(), Path: d.GetTaskPath(), Permissions: d.GetCgroupPermissions()})
	}
	for _, d := range p.tc.Devices {
		if err := r.allowedDevice(d); err != nil {
			return nil, fmt.Errorf("devices: %w", err)
		}
		add(docker.Device{HostPath: d.HostPath, Path: d.ContainerPath, Permissions: d.Permissions})
	}
	return out, nil
}

func (r *dockerRuntime) allowedDevice(d DeviceConfig) error {
	path := filepath.Clean(d.HostPath)
	real, err := realPath(path)
	if err != nil {
		return err
	}
	if strings.Trim(d.Permissions, "rwm") != "" {
		return fmt.Errorf(`cgroup_permissions %q is not known: write letters of "rwm"`, d.Permissions)
	}
	if access.IsCardNode(path) || access.IsCardNode(real) {
		return fmt.Errorf("%s belongs to an accelerator: leave it out, and ask for cards by an accelerator or device block, which brings its nodes along", d.HostPath)
	}
	if info, err := os.Stat(real); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder: name each device node by itself", d.HostPath)
	}
	if !within("/dev", path) || !within("/dev", real) {
		return fmt.Errorf("%s is no path below /dev", d.HostPath)
	}
	for _, pattern := range r.options.AllowDevices {
		if ok, err := filepath.Match(pattern, real); err == nil && ok {
			return nil
		}
	}
	return fmt.Errorf("%s is not allowed on this node: leave it out, or have it added to docker { allow_devices } in the plugin's config", d.HostPath)
}
