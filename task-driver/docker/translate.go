package docker

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/go-connections/nat"
)

// translate puts a container into the words of the daemon's API version. What that version does not know is refused
// where leaving it out would change what the container may do.
func translate(c Container, api string) (*container.Config, *container.HostConfig, *network.NetworkingConfig, error) {
	if c.CgroupNSMode != "" && versions.LessThan(api, "1.41") {
		return nil, nil, nil, errors.New("cgroupns needs Docker 20.10 or later: leave it out, or upgrade Docker")
	}
	config := &container.Config{
		Image: c.Image, Entrypoint: c.Entrypoint, Cmd: c.Command, Env: c.Env, Labels: c.Labels, User: c.User,
		WorkingDir: c.WorkDir, Hostname: c.Hostname, StopSignal: c.StopSignal, ExposedPorts: nat.PortSet{},
		Tty: c.TTY, OpenStdin: c.OpenStdin,
	}
	if c.StopTimeout > 0 {
		seconds := int(c.StopTimeout.Round(time.Second) / time.Second)
		config.StopTimeout = &seconds
	}
	if c.NoHealthCheck {
		config.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	host := hostConfig(c)
	for _, p := range c.Ports {
		for _, protocol := range []string{"tcp", "udp"} {
			port := nat.Port(strconv.Itoa(p.Container) + "/" + protocol)
			config.ExposedPorts[port] = struct{}{}
			binding := nat.PortBinding{HostPort: strconv.Itoa(p.Host)}
			if p.HostIP != "" {
				addr, err := netip.ParseAddr(p.HostIP)
				if err != nil {
					return nil, nil, nil, fmt.Errorf("publish port %d: %w", p.Host, err)
				}
				binding.HostIP = addr.String()
			}
			host.PortBindings[port] = append(host.PortBindings[port], binding)
		}
	}
	return config, host, networks(c, config, api), nil
}

func hostConfig(c Container) *container.HostConfig {
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(c.NetworkMode), PidMode: container.PidMode(c.PIDMode), IpcMode: container.IpcMode(c.IPCMode),
		UTSMode: container.UTSMode(c.UTSMode), UsernsMode: container.UsernsMode(c.UserNSMode), CgroupnsMode: container.CgroupnsMode(c.CgroupNSMode),
		DNS: c.DNS, DNSSearch: c.DNSSearch, DNSOptions: c.DNSOptions, ExtraHosts: c.ExtraHosts,
		CapAdd: c.CapAdd, CapDrop: c.CapDrop, GroupAdd: c.GroupAdd, SecurityOpt: c.SecurityOpt, Sysctls: c.Sysctls, StorageOpt: c.StorageOpt,
		ReadonlyRootfs: c.ReadOnlyRoot, Privileged: c.Privileged, ShmSize: c.ShmBytes, Runtime: c.Runtime, OomScoreAdj: c.OOMScoreAdj,
		LogConfig: container.LogConfig{Type: c.LogType, Config: c.LogOptions},
		Resources: container.Resources{
			Memory: c.MemoryBytes, MemorySwap: c.MemoryBytes, MemoryReservation: c.MemoryReserveBytes,
			CPUShares: c.CPUShares, CPUQuota: c.CPUQuotaUS, CPUPeriod: c.CPUPeriodUS, CpusetCpus: c.CPUSet,
		},
		PortBindings: nat.PortMap{},
	}
	if c.Init {
		host.Init = &c.Init
	}
	if c.PidsLimit > 0 {
		host.PidsLimit = &c.PidsLimit
	}
	for _, u := range c.Ulimits {
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	for _, d := range c.Devices {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: d.HostPath, PathInContainer: d.Path, CgroupPermissions: d.Permissions})
	}
	if len(c.CDI) > 0 {
		host.DeviceRequests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: c.CDI}}
	}
	for _, m := range c.Mounts {
		if m.SELinux != "" && m.Type == "bind" {
			host.Binds = append(host.Binds, bind(m)) // the API's mounts know no labels
			continue
		}
		host.Mounts = append(host.Mounts, translateMount(m))
	}
	return host
}

// networks are the wishes for the container's place in a network of the daemon.
func networks(c Container, config *container.Config, api string) *network.NetworkingConfig {
	old := versions.LessThan(api, "1.44")
	if old {
		//lint:ignore SA1019 the only place for it in older versions
		config.MacAddress = c.MACAddress //nolint:staticcheck // see above
	}
	if len(c.NetworkAliases) == 0 && c.IPv4Address == "" && c.IPv6Address == "" && (old || c.MACAddress == "") {
		return nil
	}
	end := &network.EndpointSettings{Aliases: c.NetworkAliases}
	if c.IPv4Address != "" || c.IPv6Address != "" {
		end.IPAMConfig = &network.EndpointIPAMConfig{IPv4Address: c.IPv4Address, IPv6Address: c.IPv6Address}
	}
	if !old {
		end.MacAddress = c.MACAddress
	}
	name := c.NetworkMode
	if name == "" || name == "default" {
		name = "bridge"
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{name: end}}
}

// bind writes a mount as docker run -v does.
func bind(m Mount) string {
	options := []string{m.SELinux}
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if m.Propagation != "" {
		options = append(options, m.Propagation)
	}
	slices.Sort(options)
	return m.Source + ":" + m.Target + ":" + strings.Join(options, ",")
}

func translateMount(m Mount) mount.Mount {
	out := mount.Mount{Type: mount.Type(m.Type), Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly}
	switch m.Type {
	case "bind":
		if m.Propagation != "" {
			out.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(m.Propagation)}
		}
	case "tmpfs":
		out.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: m.SizeBytes, Mode: os.FileMode(m.Mode)}
	case "volume":
		out.VolumeOptions = &mount.VolumeOptions{NoCopy: m.NoCopy, Labels: m.Labels}
		if m.Driver != "" {
			out.VolumeOptions.DriverConfig = &mount.Driver{Name: m.Driver, Options: m.DriverOptions}
		}
	}
	return out
}
