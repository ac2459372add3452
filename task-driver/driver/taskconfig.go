package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
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
	Auth       *docker.Auth      `codec:"auth"`
	Command    string            `codec:"command"`
	Args       []string          `codec:"args"`
	Entrypoint []string          `codec:"entrypoint"`
	WorkDir    string            `codec:"work_dir"`
	Env        map[string]string `codec:"env"`
	Labels     map[string]string `codec:"labels"`
	StopSignal string            `codec:"stop_signal"`

	Ports       []string `codec:"ports"`
	NetworkMode string   `codec:"network_mode"`
	PIDMode     string   `codec:"pid_mode"`
	IPCMode     string   `codec:"ipc_mode"`
	Hostname    string   `codec:"hostname"`
	ExtraHosts  []string `codec:"extra_hosts"`
	DNSServers  []string `codec:"dns_servers"`

	Volumes []string          `codec:"volumes"`
	Mount   []MountConfig     `codec:"mount"`
	Mounts  []MountConfig     `codec:"mounts"`
	ShmSize string            `codec:"shm_size"`
	Ulimit  map[string]string `codec:"ulimit"`
	Sysctl  map[string]string `codec:"sysctl"`

	CapAdd         []string `codec:"cap_add"`
	CapDrop        []string `codec:"cap_drop"`
	GroupAdd       []string `codec:"group_add"`
	SecurityOpt    []string `codec:"security_opt"`
	Privileged     bool     `codec:"privileged"`
	ReadonlyRootfs bool     `codec:"readonly_rootfs"`
	Init           bool     `codec:"init"`
	PidsLimit      int64    `codec:"pids_limit"`
	CPUHardLimit   bool     `codec:"cpu_hard_limit"`
	CPUCFSPeriod   int64    `codec:"cpu_cfs_period"`
	OCIRuntime     string   `codec:"oci_runtime"`

	Accelerator *accel.Block `codec:"accelerator"`
	Grant       string       `codec:"grant"`
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

// taskConfigSchema is the schema of TaskConfig.
func taskConfigSchema() *hclspec.Spec {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	list := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "list(string)", false) }
	flag := func(name string) *hclspec.Spec { return nomadplugin.OptBool(name, false) }
	number := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "number", false) }
	table := func(name string) *hclspec.Spec { return nomadplugin.BlockAttrs(name, "string") }
	return nomadplugin.Object(nomadplugin.Fields{
		"runtime": nomadplugin.OptString("runtime", runtimeDocker),
		"image":   text("image"), "images": table("images"), "force_pull": flag("force_pull"),
		"auth": nomadplugin.Block("auth", false, nomadplugin.Object(nomadplugin.Fields{
			"username": text("username"), "password": text("password"), "server_address": text("server_address"),
		})),
		"command": text("command"), "args": list("args"), "entrypoint": list("entrypoint"), "work_dir": text("work_dir"),
		"env": table("env"), "labels": table("labels"), "stop_signal": text("stop_signal"),
		"ports": list("ports"), "network_mode": text("network_mode"), "pid_mode": text("pid_mode"), "ipc_mode": text("ipc_mode"),
		"hostname": text("hostname"), "extra_hosts": list("extra_hosts"), "dns_servers": list("dns_servers"),
		"volumes": list("volumes"), "mount": nomadplugin.BlockList("mount", mountSchema()), "mounts": nomadplugin.BlockList("mounts", mountSchema()),
		"shm_size": text("shm_size"), "ulimit": table("ulimit"), "sysctl": table("sysctl"),
		"cap_add": list("cap_add"), "cap_drop": list("cap_drop"), "group_add": list("group_add"), "security_opt": list("security_opt"),
		"privileged": flag("privileged"), "readonly_rootfs": flag("readonly_rootfs"), "init": flag("init"),
		"pids_limit": number("pids_limit"), "cpu_hard_limit": flag("cpu_hard_limit"), "cpu_cfs_period": nomadplugin.OptNumber("cpu_cfs_period", 100000),
		"oci_runtime": text("oci_runtime"),
		"accelerator": nomadplugin.Block("accelerator", false, nomadplugin.Object(nomadplugin.Fields{
			"count": number("count"), "memory": text("memory"), "compute": number("compute"), "qos": text("qos"),
			"vendor": list("vendor"), "model": list("model"),
		})),
		"grant": text("grant"),
	})
}

func mountSchema() *hclspec.Spec {
	return nomadplugin.Object(nomadplugin.Fields{
		"type": nomadplugin.OptString("type", "volume"), "source": nomadplugin.Attr("source", "string", false),
		"target": nomadplugin.Attr("target", "string", false), "readonly": nomadplugin.OptBool("readonly", false),
		"bind_options": nomadplugin.Block("bind_options", false, nomadplugin.Object(nomadplugin.Fields{
			"propagation": nomadplugin.Attr("propagation", "string", false),
		})),
		"tmpfs_options": nomadplugin.Block("tmpfs_options", false, nomadplugin.Object(nomadplugin.Fields{
			"size": nomadplugin.Attr("size", "number", false), "mode": nomadplugin.Attr("mode", "number", false),
		})),
		"volume_options": nomadplugin.Block("volume_options", false, nomadplugin.Object(nomadplugin.Fields{
			"no_copy": nomadplugin.OptBool("no_copy", false), "labels": nomadplugin.BlockAttrs("labels", "string"),
			"driver_config": nomadplugin.Block("driver_config", false, nomadplugin.Object(nomadplugin.Fields{
				"name": nomadplugin.Attr("name", "string", false), "options": nomadplugin.BlockAttrs("options", "string"),
			})),
		})),
	})
}

// readTaskConfig decodes and checks a task's config.
func readTaskConfig(msgpack []byte) (TaskConfig, error) {
	var tc TaskConfig
	if err := nomadplugin.DecodeConfig(msgpack, &tc); err != nil {
		return TaskConfig{}, fmt.Errorf("task config: %w", err)
	}
	if tc.Runtime == "" {
		tc.Runtime = runtimeDocker
	}
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
		bad("runtime", "%q is not known: write docker or process", tc.Runtime)
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
	if _, err := parseBytes(tc.ShmSize); err != nil {
		bad("shm_size", "%s", err)
	}
	for _, name := range slices.Sorted(maps.Keys(tc.Ulimit)) {
		if _, err := parseUlimit(name, tc.Ulimit[name]); err != nil {
			bad("ulimit", "%s", err)
		}
	}
	for _, m := range tc.Mounts {
		if m.Target == "" || !strings.HasPrefix(m.Target, "/") {
			bad("mount", "target %q is not a full path: write where the mount appears in the container", m.Target)
		}
		if m.Type != "bind" && m.Type != "volume" && m.Type != "tmpfs" {
			bad("mount", "type %q is not known: write bind, volume or tmpfs", m.Type)
		}
	}
	for _, name := range append(slices.Sorted(maps.Keys(tc.Env)), slices.Sorted(maps.Keys(tc.Labels))...) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			bad("env", "%q is not a name", name)
		}
	}
	if tc.PidsLimit < 0 {
		bad("pids_limit", "%d is negative: write how many processes the task may have", tc.PidsLimit)
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

// parseBytes reads a size: a plain number is bytes, as in the stock docker driver, else a number with a unit.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 0 {
			return 0, fmt.Errorf("%d is negative", n)
		}
		return n, nil
	}
	mib, err := accel.ParseMemoryMiB(s)
	if err != nil {
		return 0, err
	}
	return int64(mib) << 20, nil
}

// parseUlimit reads "soft:hard" or one number for both; -1 is no limit.
func parseUlimit(name, value string) (docker.Ulimit, error) {
	softText, hardText, two := strings.Cut(value, ":")
	if !two {
		hardText = softText
	}
	soft, err1 := strconv.ParseInt(softText, 10, 64)
	hard, err2 := strconv.ParseInt(hardText, 10, 64)
	if errors.Join(err1, err2) != nil {
		return docker.Ulimit{}, fmt.Errorf(`%s = %q is not a limit: write "soft:hard", for example "65536:65536"`, name, value)
	}
	return docker.Ulimit{Name: name, Soft: soft, Hard: hard}, nil
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
