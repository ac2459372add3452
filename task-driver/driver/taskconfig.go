package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// The runtimes of a task.
const (
	runtimeDocker  = "docker"
	runtimeProcess = "process"
)

// TaskConfig is the config block of a task, as the job wrote it.
type TaskConfig struct {
	Runtime    string            `codec:"runtime"`
	Image      string            `codec:"image"`
	Images     map[string]string `codec:"images"` // by granted brand
	ForcePull  bool              `codec:"force_pull"`
	PullPolicy string            `codec:"pull_policy"`
	PullLimit  string            `codec:"image_pull_timeout"`
	Auth       *docker.Auth      `codec:"auth"`
	AuthSoft   bool              `codec:"auth_soft_fail"`
	Load       string            `codec:"load"`
	Command    string            `codec:"command"`
	Args       []string          `codec:"args"`
	Entrypoint []string          `codec:"entrypoint"`
	WorkDir    string            `codec:"work_dir"`
	Env        map[string]string `codec:"env"`
	Labels     map[string]string `codec:"labels"`
	StopSignal string            `codec:"stop_signal"`

	Ports         []string       `codec:"ports"`
	PortMap       map[string]int `codec:"port_map"`
	NetworkMode   string         `codec:"network_mode"`
	Aliases       []string       `codec:"network_aliases"`
	IPv4          string         `codec:"ipv4_address"`
	IPv6          string         `codec:"ipv6_address"`
	AdvertiseIPv6 bool           `codec:"advertise_ipv6_address"`
	MACAddress    string         `codec:"mac_address"`
	PIDMode       string         `codec:"pid_mode"`
	IPCMode       string         `codec:"ipc_mode"`
	UTSMode       string         `codec:"uts_mode"`
	UserNSMode    string         `codec:"userns_mode"`
	CgroupNS      string         `codec:"cgroupns"`
	Hostname      string         `codec:"hostname"`
	ExtraHosts    []string       `codec:"extra_hosts"`
	DNSServers    []string       `codec:"dns_servers"`
	DNSSearch     []string       `codec:"dns_search_domains"`
	DNSOptions    []string       `codec:"dns_options"`

	Volumes      []string          `codec:"volumes"`
	VolumeDriver string            `codec:"volume_driver"`
	Devices      []DeviceConfig    `codec:"devices"`
	StorageOpt   map[string]string `codec:"storage_opt"`
	Mount        []MountConfig     `codec:"mount"`
	Mounts       []MountConfig     `codec:"mounts"`
	ShmSize      string            `codec:"shm_size"`
	Ulimit       map[string]string `codec:"ulimit"`
	Sysctl       map[string]string `codec:"sysctl"`

	CapAdd         []string `codec:"cap_add"`
	CapDrop        []string `codec:"cap_drop"`
	GroupAdd       []string `codec:"group_add"`
	SecurityOpt    []string `codec:"security_opt"`
	Privileged     bool     `codec:"privileged"`
	ReadonlyRootfs bool     `codec:"readonly_rootfs"`
	Init           bool     `codec:"init"`
	TTY            bool     `codec:"tty"`
	Interactive    bool     `codec:"interactive"`
	PidsLimit      int64    `codec:"pids_limit"`
	OOMScoreAdj    int      `codec:"oom_score_adj"`
	MemoryHardMiB  int64    `codec:"memory_hard_limit"`
	CPUHardLimit   bool     `codec:"cpu_hard_limit"`
	CPUCFSPeriod   int64    `codec:"cpu_cfs_period"`
	OCIRuntime     string   `codec:"oci_runtime"`
	Logging        *Logging `codec:"logging"`
	NameAttempts   int      `codec:"container_exists_attempts"`
	HealthChecks   *struct {
		Disable bool `codec:"disable"`
	} `codec:"healthchecks"`

	Model     *ModelConfig `codec:"model"`
	Readiness *ProbeConfig `codec:"readiness"`
	Liveness  *ProbeConfig `codec:"liveness"`

	Accelerator *accel.Block `codec:"accelerator"`
	Gang        *GangConfig  `codec:"gang"`
	Grant       string       `codec:"grant"`
}

// DeviceConfig is one device node of the host.
type DeviceConfig struct {
	HostPath      string `codec:"host_path"`
	ContainerPath string `codec:"container_path"`
	Permissions   string `codec:"cgroup_permissions"`
}

// MountConfig is one mount block.
type MountConfig struct {
	Type          string        `codec:"type"`
	Source        string        `codec:"source"`
	Target        string        `codec:"target"`
	ReadOnly      bool          `codec:"readonly"`
	BindOptions   *BindConfig   `codec:"bind_options"`
	TmpfsOptions  *TmpfsConfig  `codec:"tmpfs_options"`
	VolumeOptions *VolumeConfig `codec:"volume_options"`
}

// BindConfig are the options of a bind mount.
type BindConfig struct {
	Propagation string `codec:"propagation"`
}

// TmpfsConfig are the options of a file system in memory.
type TmpfsConfig struct {
	Size int64 `codec:"size"` // bytes
	Mode int64 `codec:"mode"`
}

// VolumeConfig are the options of a volume of the daemon.
type VolumeConfig struct {
	NoCopy       bool              `codec:"no_copy"`
	Labels       map[string]string `codec:"labels"`
	DriverConfig *struct {
		Name    string            `codec:"name"`
		Options map[string]string `codec:"options"`
	} `codec:"driver_config"`
}

// readTaskConfig decodes and checks a task's config.
func readTaskConfig(msgpack []byte) (TaskConfig, error) {
	var tc TaskConfig
	if err := nomadplugin.DecodeConfig(msgpack, &tc); err != nil {
		return TaskConfig{}, fmt.Errorf("task config: %w", err)
	}
	var raw map[string]any
	if err := nomadplugin.DecodeConfig(msgpack, &raw); err != nil {
		return TaskConfig{}, fmt.Errorf("task config: %w", err)
	}
	if err := refusals(raw, "config.", stockTaskOptions); err != nil {
		return TaskConfig{}, err
	}
	if tc.Runtime == "" {
		tc.Runtime = runtimeDocker
	}
	tc.Image = strings.TrimPrefix(tc.Image, "https://") // the stock driver takes it so
	tc.Mounts = append(tc.Mount, tc.Mounts...)
	tc.Mount = nil
	return tc, tc.Validate()
}

// Validate checks what can be told without a node. Each problem names its key and says what to write.
func (tc TaskConfig) Validate() error {
	var problems []error
	bad := func(key, format string, args ...any) {
		problems = append(problems, fmt.Errorf("config.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	switch tc.Runtime {
	case runtimeDocker:
		if tc.Image == "" && len(tc.Images) == 0 {
			bad("image", `it is missing: write image = "…", or images = { nvidia = "…" } with one for each brand`)
		}
	case runtimeProcess:
		tc.validateProcess(bad)
	default:
		bad("runtime", "%q is not known: write docker or process; an OCI runtime is written oci_runtime = %q", tc.Runtime, tc.Runtime)
	}
	for _, brand := range slices.Sorted(maps.Keys(tc.Images)) {
		if _, err := accel.ParseVendor(brand); err != nil {
			bad("images", "%s", err)
		}
	}
	if tc.Accelerator != nil {
		if _, err := tc.Accelerator.Ask(); err != nil {
			bad("accelerator", "%s", err)
		}
	}
	tc.validateModel(bad)
	if _, err := tc.probes(); err != nil {
		bad("readiness, liveness", "%s", err)
	}
	tc.validateContainer(bad)
	for _, name := range append(slices.Sorted(maps.Keys(tc.Env)), slices.Sorted(maps.Keys(tc.Labels))...) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			bad("env", "%q is not a name", name)
		}
	}
	if tc.CPUCFSPeriod != 0 && (tc.CPUCFSPeriod < 1000 || tc.CPUCFSPeriod > 1000000) {
		bad("cpu_cfs_period", "%d is outside 1000–1000000: write microseconds", tc.CPUCFSPeriod)
	}
	return errors.Join(problems...)
}

func (tc TaskConfig) validateProcess(bad func(key, format string, args ...any)) {
	if tc.Command == "" {
		bad("command", `it is missing: the process runtime runs command = "…" with args = […]`)
	}
	refuse := func(key string, set bool) {
		if set {
			bad(key, "it needs a container: leave it out with runtime = \"process\", or use runtime = \"docker\"")
		}
	}
	refuse("mount", len(tc.Mounts) > 0)
	refuse("volumes", len(tc.Volumes) > 0)
	refuse("privileged", tc.Privileged)
	refuse("entrypoint", len(tc.Entrypoint) > 0)
	refuse("readonly_rootfs", tc.ReadonlyRootfs)
	refuse("network_mode", tc.NetworkMode != "" && tc.NetworkMode != "host")
}

// stopSignal is the signal that ends the task softly, in the order of who says it: Nomad's kill_signal, the config,
// SIGTERM.
func (tc TaskConfig) stopSignal(fromNomad string) string {
	switch {
	case fromNomad != "":
		return fromNomad
	case tc.StopSignal != "":
		return tc.StopSignal
	}
	return "SIGTERM"
}
