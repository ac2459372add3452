package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// A group with network { mode = "bridge" } has one network name space for all its tasks. Docker enters only those that it made,
// so a container that does nothing holds it, and Nomad connects it by its CNI plugins. The tasks' containers join that container.

var _ nomadplugin.NetworkMaker = (*Driver)(nil)

// labelHolder names the holding container in what Nomad keeps of a network, by the stock driver's word.
const labelHolder = "docker_sandbox_container_id"

// CreateNetwork makes the network of an allocation, or finds the one that was made for it.
func (d *Driver) CreateNetwork(ctx context.Context, allocID, hostname string) (*driverpb.NetworkIsolationSpec, bool, error) {
	r, err := d.containers()
	if err != nil {
		return nil, false, err
	}
	d.mu.Lock()
	d.networks[allocID] = true // the sweep must not take it before the first task comes
	d.mu.Unlock()
	spec, created, err := r.createNetwork(ctx, allocID, hostname)
	if err != nil {
		return nil, false, fmt.Errorf("make the network of the group: %w", err)
	}
	return spec, created, nil
}

// DestroyNetwork removes it.
func (d *Driver) DestroyNetwork(ctx context.Context, allocID string, spec *driverpb.NetworkIsolationSpec) error {
	r, err := d.containers()
	if err != nil {
		return err
	}
	if err := r.destroyNetwork(ctx, allocID, spec.GetLabels()[labelHolder]); err != nil {
		return fmt.Errorf("remove the network of the group: %w", err)
	}
	d.mu.Lock()
	delete(d.networks, allocID)
	d.mu.Unlock()
	return nil
}

// containers is the container runtime.
func (d *Driver) containers() (*dockerRuntime, error) {
	run, err := d.runtimeFor(runtimeDocker)
	if err != nil {
		return nil, err
	}
	r, ok := run.(*dockerRuntime)
	if !ok {
		return nil, errors.New("containers are not run by Docker on this node")
	}
	return r, nil
}

func (r *dockerRuntime) createNetwork(ctx context.Context, allocID, hostname string) (*driverpb.NetworkIsolationSpec, bool, error) {
	found, err := r.networksOf(ctx, allocID)
	if err != nil {
		return nil, false, err
	}
	for _, c := range found {
		if c.Running {
			spec, err := r.isolation(ctx, c.ID)
			return spec, false, err
		}
		if err := r.engine.Remove(ctx, c.ID); err != nil { // its name space went with it
			return nil, false, err
		}
	}
	image, err := r.infraImage(ctx)
	if err != nil {
		return nil, false, err
	}
	id, err := r.engine.Create(ctx, docker.Container{
		Name: "heteroflow-network-" + allocID, Image: image, Hostname: hostname, NetworkMode: "none",
		Labels:  map[string]string{"com.hashicorp.nomad.alloc_id": allocID, docker.LabelNetwork: allocID, docker.LabelState: r.stateDir},
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadOnlyRoot: true,
	})
	if err != nil {
		return nil, false, err
	}
	err = r.engine.Start(ctx, id)
	var spec *driverpb.NetworkIsolationSpec
	if err == nil {
		spec, err = r.isolation(ctx, id)
	}
	if err != nil {
		return nil, false, errors.Join(err, r.engine.Remove(context.WithoutCancel(ctx), id))
	}
	return spec, true, nil
}

// isolation is what Nomad is told of a network.
func (r *dockerRuntime) isolation(ctx context.Context, id string) (*driverpb.NetworkIsolationSpec, error) {
	state, err := r.engine.State(ctx, id)
	if err != nil {
		return nil, err
	}
	if !state.Running || state.Namespace == "" {
		return nil, fmt.Errorf("the container that holds it ended at once (%s): its image must have a program that waits until it is killed", cmp.Or(state.Error, fmt.Sprintf("exit code %d", state.ExitCode)))
	}
	return &driverpb.NetworkIsolationSpec{Mode: driverpb.NetworkIsolationSpec_GROUP, Path: state.Namespace, Labels: map[string]string{labelHolder: id}}, nil
}

// networksOf are our containers that hold the allocation's network: one, or none.
func (r *dockerRuntime) networksOf(ctx context.Context, allocID string) ([]docker.Found, error) {
	found, err := r.engine.List(ctx, docker.LabelNetwork, allocID)
	var ours []docker.Found
	for _, c := range found {
		if c.StateDir == r.stateDir {
			ours = append(ours, c)
		}
	}
	return ours, err
}

// destroyNetwork removes the containers that hold it: those of our label, and the one that Nomad has kept.
func (r *dockerRuntime) destroyNetwork(ctx context.Context, allocID, holder string) error {
	found, err := r.networksOf(ctx, allocID)
	errs := []error{err}
	for _, c := range found {
		if c.ID != holder {
			errs = append(errs, r.engine.Remove(ctx, c.ID))
		}
	}
	if holder != "" {
		errs = append(errs, r.engine.Remove(ctx, holder))
	}
	return errors.Join(errs...)
}

// infraImage is the image of the holding container: the administrator's, which is pulled where the node lacks it, or our own.
func (r *dockerRuntime) infraImage(ctx context.Context) (string, error) {
	ref := r.options.InfraImage
	if ref == "" {
		return docker.PauseImage, r.engine.MakePauseImage(ctx)
	}
	if _, err := r.engine.ImageID(ctx, ref); !errors.Is(err, docker.ErrNotFound) {
		return ref, err
	}
	auth, err := r.auth(ctx, TaskConfig{}, ref)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.options.infraLimit, fmt.Errorf("it took longer than infra_image_pull_timeout = %q", r.options.infraLimit))
	defer cancel()
	if err := r.engine.Pull(ctx, ref, auth, r.options.pullSilence, nil); err != nil {
		return "", &pullError{err}
	}
	return ref, nil
}

// group is the network of the task's group, which its container joins; nil when it has one of its own.
func (p *plan) group() *driverpb.NetworkIsolationSpec {
	spec := p.cfg.GetNetworkIsolationSpec()
	if spec.GetMode() != driverpb.NetworkIsolationSpec_GROUP || p.tc.NetworkMode != "" {
		return nil
	}
	return spec
}

// checkGroup refuses what belongs to the whole group's network, or to a network that Docker made.
func (p *plan) checkGroup() error {
	spec := p.group()
	if spec == nil {
		return nil
	}
	var problems []error
	refuse := func(set bool, option, instead string) {
		if set {
			problems = append(problems, fmt.Errorf("config.%s: the task is in its group's network: %s", option, instead))
		}
	}
	refuse(p.tc.Hostname != "", "hostname", "leave it out, and write network { hostname = … } in the group")
	refuse(p.tc.MACAddress != "", "mac_address", "leave it out")
	refuse(p.tc.AdvertiseIPv6, "advertise_ipv6_address", "leave it out, and write address_mode in the service")
	if spec.GetLabels()[labelHolder] == "" {
		problems = append(problems, errors.New("the group's network was made by another driver, and Docker cannot enter it: have all tasks of the group that run in containers use the driver heteroflow"))
	}
	_, err := groupHosts(spec, p.tc.ExtraHosts)
	return errors.Join(append(problems, err)...)
}

// joinGroup puts the container into its group's network. Docker lets it have no names and servers of its own there, so that files
// bring them, as in the stock driver.
func (r *dockerRuntime) joinGroup(p *plan, c *docker.Container) {
	spec := p.group()
	if spec == nil {
		return
	}
	c.NetworkMode = "container:" + spec.GetLabels()[labelHolder]
	c.Ports = nil // Nomad's CNI plugins publish the group's ports
	for _, f := range r.groupFiles(p) {
		c.Mounts = append(c.Mounts, docker.Mount{Type: "bind", Source: f.source, Target: f.target})
	}
	c.ExtraHosts, c.DNS, c.DNSSearch, c.DNSOptions = nil, nil, nil, nil
}

// groupFile is a file of the node that stands in a container.
type groupFile struct{ source, target, text string }

// groupFiles are the names and, where the job says, the servers by which a task in its group's network finds others.
// They lie beside the task's state, where no task can put a link in their place.
func (r *dockerRuntime) groupFiles(p *plan) []groupFile {
	dir := r.taskDir(p.cfg.GetId())
	hosts, err := groupHosts(p.group(), p.tc.ExtraHosts)
	if err != nil {
		return nil // refused by checkGroup
	}
	files := []groupFile{{filepath.Join(dir, "hosts"), "/etc/hosts", hosts}}
	servers, searches, options := p.dns()
	var text strings.Builder
	for _, s := range servers {
		text.WriteString("nameserver " + s + "\n")
	}
	if len(searches) > 0 {
		text.WriteString("search " + strings.Join(searches, " ") + "\n")
	}
	if len(options) > 0 {
		text.WriteString("options " + strings.Join(options, " ") + "\n")
	}
	if text.Len() > 0 {
		files = append(files, groupFile{filepath.Join(dir, "resolv.conf"), "/etc/resolv.conf", text.String()})
	}
	return files
}

// dns is how names are resolved: the task's words, each before the group's.
func (p *plan) dns() (servers, searches, options []string) {
	pick := func(own, group []string) []string {
		if len(own) > 0 {
			return own
		}
		return group
	}
	g := p.cfg.GetDns()
	return pick(p.tc.DNSServers, g.GetServers()), pick(p.tc.DNSSearch, g.GetSearches()), pick(p.tc.DNSOptions, g.GetOptions())
}

// groupHosts is the task's /etc/hosts: this host's usual names, the group's own and what the job adds.
func groupHosts(spec *driverpb.NetworkIsolationSpec, extra []string) (string, error) {
	text := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\nfe00:: ip6-localnet\nff00:: ip6-mcastprefix\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\n"
	if own := spec.GetHostsConfig(); own.GetAddress() != "" && own.GetHostname() != "" {
		text += own.GetAddress() + " " + own.GetHostname() + "\n"
	}
	for _, line := range extra {
		name, addr, found := strings.Cut(line, ":")
		if !found || strings.Contains(name, "=") {
			name, addr, found = strings.Cut(line, "=")
		}
		ip, err := netip.ParseAddr(strings.Trim(addr, "[]"))
		if !found || name == "" || strings.ContainsAny(name, " \t\n") || err != nil {
			return "", fmt.Errorf(`config.extra_hosts: %q is not a name and an address: write "name:10.0.0.1"; host-gateway is not known in a group's network`, line)
		}
		text += ip.String() + " " + name + "\n"
	}
	return text, nil
}

// readyGroup writes the files, and sees that the group's network is there: when the daemon restarts, the container that holds it
// ends, and what Nomad connected to it is gone.
func (r *dockerRuntime) readyGroup(ctx context.Context, p *plan) error {
	spec := p.group()
	if spec == nil {
		return nil
	}
	state, err := r.engine.State(ctx, spec.GetLabels()[labelHolder])
	if err != nil && !errors.Is(err, docker.ErrNotFound) {
		return err
	}
	if err != nil || !state.Running {
		return errors.New("the network of the group is gone, as after a restart of the Docker daemon: the allocation must be replaced (nomad alloc stop), which Nomad does by itself where the group's reschedule block allows it")
	}
	for _, f := range r.groupFiles(p) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f.source), 0o700), os.WriteFile(f.source, []byte(f.text), 0o644)); err != nil {
			return fmt.Errorf("write %s of the group's network: %w", f.target, err)
		}
	}
	return nil
}
