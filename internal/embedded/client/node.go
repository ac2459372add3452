package client

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// Ports that jobs may be given, as Nomad's defaults.
const minDynamicPort, maxDynamicPort = 20000, 32000

// machine is what the node finds about itself once, at its start.
type machine struct {
	attributes map[string]string
	cores      int
	cpuMHz     int
	memoryMiB  int
	diskMiB    int
}

func findMachine(conf NodeConfig, dataDir string) (machine, error) {
	m := machine{attributes: map[string]string{}, cores: runtime.NumCPU()}
	a := m.attributes
	kernel, err := askKernel()
	if err != nil {
		return m, fmt.Errorf("ask for the kernel: %w", err)
	}
	a["kernel.name"], a["kernel.version"] = strings.ToLower(kernel.name), kernel.release
	a["arch"], a["cpu.arch"] = runtime.GOARCH, runtime.GOARCH
	a["unique.hostname"] = kernel.host
	a["nomad.version"], a["nomad.revision"] = "2.0.5", "heteroflow-embedded"
	a["unique.network.ip-address"] = conf.HostIP
	osRelease(a)
	model, mhz := cpuInfo()
	if model != "" {
		a["cpu.modelname"] = model
	}
	m.cpuMHz = cmp.Or(conf.CPUMHz, mhz*m.cores)
	a["cpu.numcores"] = strconv.Itoa(m.cores)
	a["cpu.frequency"] = strconv.Itoa(mhz)
	a["cpu.totalcompute"] = strconv.Itoa(m.cpuMHz)
	total, err := totalMemory()
	if err != nil {
		return m, err
	}
	m.memoryMiB = cmp.Or(conf.MemoryMiB, int(total>>20))
	a["memory.totalbytes"] = strconv.FormatUint(uint64(m.memoryMiB)<<20, 10)
	disk, err := askDisk(dataDir)
	if err != nil {
		return m, fmt.Errorf("ask for the disk of %s: %w", dataDir, err)
	}
	m.diskMiB = int(disk.avail >> 20)
	a["unique.storage.volume"] = dataDir
	a["unique.storage.bytesfree"] = strconv.FormatUint(disk.avail, 10)
	a["unique.storage.bytestotal"] = strconv.FormatUint(disk.size, 10)
	return m, nil
}

func osRelease(a map[string]string) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return // a system that does not say has no such attributes
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"`)
		switch key {
		case "ID":
			a["os.name"] = value
		case "VERSION_ID":
			a["os.version"] = value
		}
	}
}

// cpuInfo reads model and speed in MHz of the first processor, 2000 when the kernel does not say.
func cpuInfo() (model string, mhz int) {
	mhz = 2000
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", mhz
	}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		key, value, _ := strings.Cut(sc.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name":
			if model == "" {
				model = value
			}
		case "cpu MHz":
			if f, err := strconv.ParseFloat(value, 64); err == nil && f >= 1 {
				return model, int(f)
			}
		}
	}
	return model, mhz
}

// totalMemory is the memory of the machine in bytes.
func totalMemory() (uint64, error) {
	info, err := meminfo()
	if err != nil {
		return 0, err
	}
	return info["MemTotal"], nil
}

// meminfo reads the kernel's memory table, in bytes.
func meminfo() (map[string]uint64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("ask for the memory: %w", err)
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if kib, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			out[strings.TrimSuffix(f[0], ":")] = kib << 10
		}
	}
	return out, nil
}

// node assembles the whole node from the machine and what the plugins said last.
func (c *Client) node() *api.Node {
	conf, m := c.cfg.Node, c.machine
	n := &api.Node{
		ID: conf.ID, Name: conf.Name, Datacenter: conf.Datacenter, NodePool: conf.NodePool, NodeClass: conf.Class,
		Meta: maps.Clone(conf.Meta), Attributes: maps.Clone(m.attributes), Status: "ready", SchedulingEligibility: "eligible",
		Drivers: map[string]*api.DriverInfo{}, Links: map[string]string{}, HostVolumes: map[string]*api.HostVolumeInfo{},
		NodeResources: &api.NodeResources{
			Cpu:            api.NodeCpuResources{CpuShares: int64(m.cpuMHz), TotalCpuCores: uint16(m.cores)},
			Memory:         api.NodeMemoryResources{MemoryMB: int64(m.memoryMiB)},
			Disk:           api.NodeDiskResources{DiskMB: int64(m.diskMiB)},
			Networks:       []*api.NetworkResource{{Mode: "host", Device: "host", CIDR: conf.HostIP + "/32", IP: conf.HostIP}},
			MinDynamicPort: minDynamicPort, MaxDynamicPort: maxDynamicPort,
		},
		ReservedResources: &api.NodeReservedResources{},
	}
	if n.Meta == nil {
		n.Meta = map[string]string{}
	}
	for _, d := range c.devices {
		groups, _ := d.state()
		for _, g := range groups {
			n.NodeResources.Devices = append(n.NodeResources.Devices, nodeDevice(g))
		}
	}
	slices.SortFunc(n.NodeResources.Devices, func(a, b *api.NodeDeviceResource) int { return cmp.Compare(a.ID(), b.ID()) })
	for _, d := range c.drivers {
		addDriver(n, d)
	}
	return n
}

func addDriver(n *api.Node, d *driverPlugin) {
	f, updated := d.state()
	info := &api.DriverInfo{
		Detected: f.GetHealth() != driverpb.FingerprintResponse_UNDETECTED, Healthy: f.GetHealth() == driverpb.FingerprintResponse_HEALTHY,
		HealthDescription: f.GetHealthDescription(), UpdateTime: updated, Attributes: map[string]string{},
	}
	for key, a := range f.GetAttributes() {
		if text := attributeText(a); text != "" {
			info.Attributes[key], n.Attributes[key] = text, text
		}
	}
	if info.Detected {
		n.Attributes["driver."+d.name()] = "1"
		info.Attributes["driver."+d.name()] = "true"
	}
	n.Drivers[d.name()] = info
}

// attributeText is an attribute as it stands among a node's attributes: a number with its unit behind it.
func attributeText(a *structspb.Attribute) string {
	switch v := a.GetValue().(type) {
	case *structspb.Attribute_StringVal:
		return v.StringVal
	case *structspb.Attribute_BoolVal:
		return strconv.FormatBool(v.BoolVal)
	case *structspb.Attribute_IntVal:
		return strconv.FormatInt(v.IntVal, 10) + a.GetUnit()
	case *structspb.Attribute_FloatVal:
		return strconv.FormatFloat(v.FloatVal, 'f', -1, 64) + a.GetUnit()
	}
	return ""
}

func nodeDevice(g *devicepb.DeviceGroup) *api.NodeDeviceResource {
	out := &api.NodeDeviceResource{Vendor: g.GetVendor(), Type: g.GetDeviceType(), Name: g.GetDeviceName(), Attributes: map[string]*api.Attribute{}}
	for _, d := range g.GetDevices() {
		inst := &api.NodeDevice{ID: d.GetID(), Healthy: d.GetHealthy(), HealthDescription: d.GetHealthDescription()}
		if bus := d.GetHwLocality().GetPciBusId(); bus != "" {
			inst.Locality = &api.NodeDeviceLocality{PciBusID: bus}
		}
		out.Instances = append(out.Instances, inst)
	}
	for key, a := range g.GetAttributes() {
		attr := &api.Attribute{Unit: a.GetUnit()}
		switch v := a.GetValue().(type) {
		case *structspb.Attribute_StringVal:
			attr.StringVal = &v.StringVal
		case *structspb.Attribute_BoolVal:
			attr.BoolVal = &v.BoolVal
		case *structspb.Attribute_IntVal:
			attr.IntVal = &v.IntVal
		case *structspb.Attribute_FloatVal:
			attr.FloatVal = &v.FloatVal
		}
		out.Attributes[key] = attr
	}
	return out
}
