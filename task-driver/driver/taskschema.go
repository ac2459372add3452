package driver

import (
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// defaultNameAttempts is how often a container that has ended and holds the task's name is removed.
const defaultNameAttempts = 5

// taskConfigSchema is the schema of TaskConfig.
func taskConfigSchema() *hclspec.Spec {
	text := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "string", false) }
	list := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "list(string)", false) }
	flag := func(name string) *hclspec.Spec { return nomadplugin.OptBool(name, false) }
	number := func(name string) *hclspec.Spec { return nomadplugin.Attr(name, "number", false) }
	table := func(name string) *hclspec.Spec { return nomadplugin.BlockAttrs(name, "string") }
	return nomadplugin.Object(nomadplugin.Fields{
		"runtime": nomadplugin.OptString("runtime", runtimeDocker),
		"image":   text("image"), "images": table("images"), "force_pull": flag("force_pull"), "pull_policy": text("pull_policy"),
		"image_pull_timeout": text("image_pull_timeout"), "auth_soft_fail": flag("auth_soft_fail"), "load": text("load"),
		"auth": nomadplugin.Block("auth", false, nomadplugin.Object(nomadplugin.Fields{
			"username": text("username"), "password": text("password"), "server_address": text("server_address"), "email": text("email"),
		})),
		"command": text("command"), "args": list("args"), "entrypoint": list("entrypoint"), "work_dir": text("work_dir"),
		"env": table("env"), "labels": table("labels"), "stop_signal": text("stop_signal"),
		"ports": list("ports"), "network_mode": text("network_mode"), "pid_mode": text("pid_mode"), "ipc_mode": text("ipc_mode"),
		"port_map": nomadplugin.BlockAttrs("port_map", "number"), "network_aliases": list("network_aliases"),
		"ipv4_address": text("ipv4_address"), "ipv6_address": text("ipv6_address"), "advertise_ipv6_address": flag("advertise_ipv6_address"),
		"mac_address": text("mac_address"), "uts_mode": text("uts_mode"), "userns_mode": text("userns_mode"), "cgroupns": text("cgroupns"),
		"hostname": text("hostname"), "extra_hosts": list("extra_hosts"), "dns_servers": list("dns_servers"),
		"dns_search_domains": list("dns_search_domains"), "dns_options": list("dns_options"),
		"volume_driver": text("volume_driver"), "storage_opt": table("storage_opt"),
		"devices": nomadplugin.BlockList("devices", nomadplugin.Object(nomadplugin.Fields{
			"host_path": text("host_path"), "container_path": text("container_path"), "cgroup_permissions": text("cgroup_permissions"),
		})),
		"volumes": list("volumes"), "mount": nomadplugin.BlockList("mount", mountSchema()), "mounts": nomadplugin.BlockList("mounts", mountSchema()),
		"shm_size": text("shm_size"), "ulimit": table("ulimit"), "sysctl": table("sysctl"),
		"cap_add": list("cap_add"), "cap_drop": list("cap_drop"), "group_add": list("group_add"), "security_opt": list("security_opt"),
		"privileged": flag("privileged"), "readonly_rootfs": flag("readonly_rootfs"), "init": flag("init"),
		"tty": flag("tty"), "interactive": flag("interactive"), "oom_score_adj": number("oom_score_adj"), "memory_hard_limit": number("memory_hard_limit"),
		"logging": nomadplugin.Block("logging", false, loggingSchema()), "container_exists_attempts": nomadplugin.OptNumber("container_exists_attempts", defaultNameAttempts),
		"healthchecks": nomadplugin.Block("healthchecks", false, nomadplugin.Object(nomadplugin.Fields{"disable": flag("disable")})),
		"isolation":    text("isolation"),
		"pids_limit":   number("pids_limit"), "cpu_hard_limit": flag("cpu_hard_limit"), "cpu_cfs_period": nomadplugin.OptNumber("cpu_cfs_period", 100000),
		"oci_runtime": text("oci_runtime"),
		"accelerator": nomadplugin.Block("accelerator", false, nomadplugin.Object(nomadplugin.Fields{
			"count": number("count"), "memory": text("memory"), "compute": number("compute"), "qos": text("qos"),
			"vendor": list("vendor"), "model": list("model"),
		})),
		"model": nomadplugin.Block("model", false, modelSchema()), "readiness": nomadplugin.Block("readiness", false, probeSchema()),
		"liveness": nomadplugin.Block("liveness", false, probeSchema()),
		"gang":     nomadplugin.Block("gang", false, gangSchema()),
		"grant":    text("grant"),
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
