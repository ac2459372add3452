package driver

import (
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// stockOption is one documented option of Nomad's own Docker driver and what became of it here. docs/docker-options.md
// shows the same list; a test keeps both, the schemas and the code in step.
type stockOption struct {
	name    string // as Nomad documents it
	here    string // the option that does the same, where it has another name
	refused string // what is said to a job or config that sets it; empty: it works
	test    string // the test that shows it
}

func (o stockOption) option() string {
	if o.here != "" {
		return o.here
	}
	return o.name
}

const windowsOnly = "it is for Windows, this driver runs Linux containers: leave it out"

// stockTaskOptions are those of a task. Source: Nomad 1.11, "Use the Docker task driver in a job".
var stockTaskOptions = []stockOption{
	{name: "image", test: "TestDocker_Request"},
	{name: "image_pull_timeout", test: "TestDocker_PullLimits"},
	{name: "args", test: "TestDocker_Request"},
	{name: "auth", test: "TestDocker_Auth"},
	{name: "auth.username", test: "TestDocker_Auth"},
	{name: "auth.password", test: "TestDocker_Auth"},
	{name: "auth.email", test: "TestDocker_Auth"},
	{name: "auth.server_address", test: "TestDocker_Auth"},
	{name: "auth_soft_fail", test: "TestDocker_Auth"},
	{name: "command", test: "TestDocker_Request"},
	{name: "cgroupns", test: "TestDocker_MoreOptions"},
	{name: "container_exists_attempts", test: "TestDocker_NameInUse"},
	{name: "dns_search_domains", test: "TestDocker_MoreOptions"},
	{name: "dns_options", test: "TestDocker_MoreOptions"},
	{name: "dns_servers", test: "TestDocker_MoreOptions"},
	{name: "entrypoint", test: "TestDocker_Request"},
	{name: "extra_hosts", test: "TestDocker_Request"},
	{name: "force_pull", test: "TestDocker_PullPolicy"},
	{name: "group_add", test: "TestDocker_MoreOptions"},
	{name: "healthchecks", test: "TestDocker_MoreOptions"},
	{name: "healthchecks.disable", test: "TestDocker_MoreOptions"},
	{name: "hostname", test: "TestDocker_Request"},
	{name: "init", test: "TestDocker_Request"},
	{name: "interactive", test: "TestDocker_MoreOptions"},
	{name: "isolation", refused: windowsOnly, test: "TestStock_RefusalsAreSaid"},
	{name: "sysctl", test: "TestDocker_MoreOptions"},
	{name: "ulimit", test: "TestDocker_Request"},
	{name: "privileged", test: "TestDocker_Refusals"},
	{name: "ipc_mode", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "ipv4_address", test: "TestDocker_MoreOptions"},
	{name: "ipv6_address", test: "TestDocker_MoreOptions"},
	{name: "labels", test: "TestDocker_Request"},
	{name: "load", test: "TestDocker_Load"},
	{name: "logging", test: "TestDocker_Logging"},
	{name: "logging.type", test: "TestDocker_Logging"},
	{name: "logging.config", test: "TestDocker_Logging"},
	{name: "mac_address", test: "TestDocker_MoreOptions"},
	{name: "memory_hard_limit", test: "TestDocker_MemoryLimits"},
	{name: "network_aliases", test: "TestDocker_MoreOptions"},
	{name: "network_mode", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "oom_score_adj", test: "TestDocker_MoreOptions"},
	{name: "pid_mode", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "ports", test: "TestDocker_Request"},
	{name: "port_map", test: "TestDocker_PortMap"},
	{name: "security_opt", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "shm_size", test: "TestDocker_Request"},
	{name: "storage_opt", test: "TestDocker_MoreOptions"},
	{name: "tty", test: "TestDocker_TTY"},
	{name: "uts_mode", test: "TestDocker_MoreOptions"},
	{name: "userns_mode", test: "TestDocker_MoreOptions"},
	{name: "volumes", test: "TestDocker_Request"},
	{name: "volume_driver", test: "TestDocker_VolumeDriver"},
	{name: "work_dir", test: "TestDocker_Request"},
	{name: "mount", test: "TestDocker_Request"},
	{name: "mount.type", test: "TestDocker_Request"},
	{name: "mount.source", test: "TestDocker_Request"},
	{name: "mount.target", test: "TestDocker_Request"},
	{name: "mount.readonly", test: "TestDocker_MountOptions"},
	{name: "mount.bind_options.propagation", test: "TestDocker_MountOptions"},
	{name: "mount.tmpfs_options.size", test: "TestDocker_MountOptions"},
	{name: "mount.volume_options.no_copy", test: "TestDocker_MountOptions"},
	{name: "mount.volume_options.labels", test: "TestDocker_MountOptions"},
	{name: "mount.volume_options.driver_config", test: "TestDocker_MountOptions"},
	{name: "mounts", test: "TestDocker_MountOptions"},
	{name: "devices", test: "TestDocker_Devices"},
	{name: "devices.host_path", test: "TestDocker_Devices"},
	{name: "devices.container_path", test: "TestDocker_Devices"},
	{name: "devices.cgroup_permissions", test: "TestDocker_Devices"},
	{name: "cap_add", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "cap_drop", test: "TestDocker_Request"},
	{name: "cpu_hard_limit", test: "TestDocker_Request"},
	{name: "cpu_cfs_period", test: "TestDocker_Request"},
	{name: "advertise_ipv6_address", test: "TestDocker_AdvertiseIPv6"},
	{name: "readonly_rootfs", test: "TestDocker_Request"},
	{name: "runtime", here: "oci_runtime", test: "TestDocker_OCIRuntime"},
	{name: "pids_limit", test: "TestDocker_PidsLimit"},
}

// stockPluginOptions are those of the plugin, here in the block docker. Source: Nomad 1.11, "Configure the Docker task
// driver".
var stockPluginOptions = []stockOption{
	{name: "endpoint", test: "TestDocker_Life"},
	{name: "allow_privileged", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "pull_activity_timeout", test: "TestDocker_PullLimits"},
	{name: "pids_limit", test: "TestDocker_PidsLimit"},
	{name: "allow_caps", test: "TestDocker_AllowedByTheAdministrator"},
	{name: "allow_runtimes", test: "TestDocker_OCIRuntime"},
	{name: "auth.config", here: "auth_file", test: "TestDocker_Auth"},
	{name: "auth.helper", here: "auth_helper", test: "TestDocker_Auth"},
	{name: "tls.cert", test: "TestDialTLS"},
	{name: "tls.key", test: "TestDialTLS"},
	{name: "tls.ca", test: "TestDialTLS"},
	{name: "disable_log_collection", test: "TestDocker_Logging"},
	{name: "extra_labels", refused: "every label it could add is always there: leave it out", test: "TestStock_RefusalsAreSaid"},
	{name: "logging.type", test: "TestDocker_Logging"},
	{name: "logging.config", test: "TestDocker_Logging"},
	{name: "gc.image", test: "TestDocker_ImagesAreRemoved"},
	{name: "gc.image_delay", test: "TestDocker_ImagesAreRemoved"},
	{name: "gc.container", test: "TestDocker_EndedContainersStay"},
	{name: "gc.dangling_containers", test: "TestSweep_DanglingContainers"},
	{name: "volumes.enabled", here: "volumes_enabled", test: "TestDocker_Request"},
	{name: "volumes.selinuxlabel", here: "volumes_selinuxlabel", test: "TestDocker_SELinux"},
	{name: "infra_image", test: "TestNetwork_InfraImage"},
	{name: "infra_image_pull_timeout", test: "TestNetwork_InfraImage"},
	{name: "windows_allow_insecure_container_admin", refused: windowsOnly, test: "TestStock_RefusalsAreSaid"},
	{name: "nvidia_runtime", refused: `write docker { runtimes = { nvidia = "…" } } in its place, which there is for every brand`, test: "TestStock_RefusalsAreSaid"},
}

// refusals are what the options in a decoded config are refused with. An option that is not set, or set to what it is by
// itself, is no matter.
func refusals(raw map[string]any, prefix string, options []stockOption) error {
	var problems []error
	said := map[string]bool{}
	for _, o := range options {
		if o.refused == "" || said[o.option()] || !isSet(raw[o.option()]) {
			continue
		}
		said[o.option()] = true
		problems = append(problems, fmt.Errorf("%s%s: %s", prefix, o.option(), o.refused))
	}
	return errors.Join(problems...)
}

// refusedDocker are the refusals of a plugin's config.
func refusedDocker(msgpack []byte) error {
	var raw struct {
		Docker map[string]any `codec:"docker"`
	}
	if err := nomadplugin.DecodeConfig(msgpack, &raw); err != nil {
		return err
	}
	return refusals(raw.Docker, "docker.", stockPluginOptions)
}

func isSet(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case []byte:
		return len(v) > 0
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// refusedPluginFields are the schema of what is refused in the block docker.
func refusedPluginFields() nomadplugin.Fields {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	flag := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "bool", false) }
	return nomadplugin.Fields{
		"extra_labels":                           nomadplugin.Attr("extra_labels", "list(string)", false),
		"windows_allow_insecure_container_admin": flag("windows_allow_insecure_container_admin"), "nvidia_runtime": text("nvidia_runtime"),
	}
}
