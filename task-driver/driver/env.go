package driver

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Variables by which a task learns what it was given.
const (
	envCards   = "HETEROFLOW_CARDS"
	envVendor  = "HETEROFLOW_VENDOR"
	envMemory  = "HETEROFLOW_MEMORY_MIB"
	envCompute = "HETEROFLOW_COMPUTE_PCT"
	envQoS     = "HETEROFLOW_QOS"
)

// taskEnv is the environment of a task. What comes later wins: Nomad's env (templates included), the config's env, the
// device plugins' env, then what the driver alone knows. The brands' visible-devices variables and what the shares need come
// last, so that nothing a job or an image sets can show a card that was not granted, or lift a limit.
func taskEnv(cfg *driverpb.TaskConfig, tc TaskConfig, s admission, setup share.Combined) map[string]string {
	env := map[string]string{}
	maps.Copy(env, cfg.GetEnv())
	maps.Copy(env, tc.Env)
	maps.Copy(env, cfg.GetDeviceEnv())
	for name := range env {
		// In a list, a name with "=" in it is another name: that of a variable which is guarded, and the later one of the two.
		if strings.HasPrefix(name, grant.EnvPrefix) || access.IsGuarded(name) || strings.ContainsAny(name, "=\x00") {
			delete(env, name)
		}
	}
	for _, name := range []string{envCards, envVendor, envMemory, envCompute, envQoS} {
		delete(env, name)
	}
	tc.setModel(env)
	if len(s.cards) > 0 {
		var brands []string
		for _, v := range s.vendors() {
			brands = append(brands, string(v))
		}
		env[envCards] = strings.Join(s.uuids(), ",")
		env[envVendor] = strings.Join(brands, ",")
		env[envQoS] = string(s.qos)
		if s.memoryMiB > 0 {
			env[envMemory] = strconv.FormatUint(s.memoryMiB, 10)
		}
		if s.computePct > 0 {
			env[envCompute] = strconv.Itoa(s.computePct)
		}
	}
	s.setGang(env)
	shareEnv(env, tc, s.cards, setup)
	return env
}

// envList is an environment as name=value, sorted.
func envList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}
