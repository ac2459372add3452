package driver

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/barrier"
)

// meetingPlace lets members go once so many have come, each with its index as its rank.
type meetingPlace struct {
	members int
	late    bool // nobody starts
	env     map[string]string
	files   map[string]string

	mu   sync.Mutex
	came map[string]barrier.Arrival // by visit
	all  chan struct{}
}

func (m *meetingPlace) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a barrier.Arrival
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil || r.Header.Get("Authorization") != "Bearer hf-node-1" {
		http.Error(w, "unexpected", http.StatusTeapot)
		return
	}
	m.mu.Lock()
	m.came[a.Visit] = a
	if len(m.came) == m.members {
		close(m.all)
	}
	m.mu.Unlock()
	answer := map[string]any{"state": "given_up", "reason": "1 of 2 members of the gang came within 1s"}
	if !m.late {
		<-m.all
		env := map[string]string{"RANK": fmt.Sprint(a.Index)}
		for name, value := range m.env {
			env[name] = value
		}
		answer = map[string]any{"state": "started", "members": m.members, "attempt": 1, "rank": a.Index, "env": env, "files": m.files}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		panic(err)
	}
}

// gangRig is a node whose driver meets others at a place.
func gangRig(t *testing.T, place *meetingPlace) (*rig, func(index int, script string) job) {
	t.Helper()
	place.came, place.all = map[string]barrier.Arrival{}, make(chan struct{})
	server := httptest.NewServer(place)
	t.Cleanup(server.Close)
	key := testKey(t)
	r := newRig(t, map[string]any{
		"grant_public_key": base64.StdEncoding.EncodeToString(publicOf(key)), "server": server.URL, "token": "hf-node-1",
	})
	g := granted()
	g.Count, g.MemoryMiB, g.ComputePct, g.QoS, g.Vendors = 1, 0, 0, accel.Gold, nil
	g.Gang = &grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang}
	return r, func(index int, script string) job {
		config := shell(script)
		config["grant"] = sign(t, key, g)
		config["env"] = map[string]string{"RANK": "of the job", "KEPT": "of the job"}
		return r.job(config, func(c *driverpb.TaskConfig) {
			c.Env["NOMAD_ALLOC_INDEX"] = fmt.Sprint(index)
			c.DeviceEnv = reserve(t, whole(accel.NVIDIA, fmt.Sprint("GPU-", index)))
			c.Resources.Ports = append(c.Resources.Ports, &driverpb.PortMapping{Label: "master", Value: 20001, HostIp: "10.0.0.7"})
			c.Id = fmt.Sprintf("%s/web/%08d", allocID, index)
		})
	}
}

// No member runs its command before all are there, and each runs with what it was told, in the place of what the job says;
// what shows cards stays as granted.
func TestGang_StartsTogether(t *testing.T) {
	t.Parallel()
	place := &meetingPlace{
		members: 2, env: map[string]string{"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "HOSTS": "${NOMAD_TASK_DIR}/heteroflow/hostfile", "NVIDIA_VISIBLE_DEVICES": "all", "HETEROFLOW_RESERVED_X": "{}"},
		files: map[string]string{"heteroflow/hostfile": "10.0.0.7 slots=1\n"},
	}
	r, member := gangRig(t, place)
	marks := t.TempDir()
	script := func(i int) string {
		return fmt.Sprintf(`touch %s/%d; echo "$RANK $WORLD_SIZE $KEPT $NVIDIA_VISIBLE_DEVICES"; cat "$HOSTS"`, marks, i)
	}
	first, second := member(0, script(0)), member(1, script(1))
	done := make(chan error, 1)
	go func() {
		_, _, err := r.Start(r.ctx, first.cfg)
		done <- err
	}()
	eventually(t, func() bool {
		place.mu.Lock()
		defer place.mu.Unlock()
		return len(place.came) == 1
	}, "the first member does not come")
	if ran, err := os.ReadDir(marks); err != nil || len(ran) > 0 {
		t.Fatalf("a member ran alone: %v, %v", ran, err)
	}
	r.start(second)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, j := range []job{first, second} {
		r.wait(j.cfg.GetId())
		want := fmt.Sprintf("%d 2 of the job GPU-%d\n10.0.0.7 slots=1\n", i, i)
		if got := <-j.stdout; got != want {
			t.Errorf("member %d says %q, want %q", i, got, want)
		}
	}
	for _, a := range place.came {
		if a.Port != 20001 || a.Address != "10.0.0.7" || a.Vendor != "nvidia" || len(a.Cards) != 1 || a.NodeID != "node-id" || a.Grant == "" {
			t.Errorf("a member says %+v", a)
		}
	}
}

// A gang that does not come together fails the start so that the restart policy applies, gives its cards back, and says why.
func TestGang_Late(t *testing.T) {
	t.Parallel()
	r, member := gangRig(t, &meetingPlace{members: 9, late: true})
	j := member(0, "touch "+filepath.Join(r.state, "ran"))
	_, _, err := r.Start(r.ctx, j.cfg)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 members of the gang came within 1s") {
		t.Fatal(err)
	}
	if !nomadplugin.IsRecoverable(err) {
		t.Errorf("%v is not for the restart policy", err)
	}
	if _, err := os.Stat(filepath.Join(r.state, "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command ran")
	}
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) > 0 {
		t.Errorf("leases are left: %v, %v", leases, err)
	}
}

func TestGang_Refusals(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	public := base64.StdEncoding.EncodeToString(publicOf(key))
	g := granted()
	g.Count, g.MemoryMiB, g.ComputePct, g.Vendors = 1, 0, 0, nil
	member := g
	member.Gang = &grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: grant.RestartGang}
	newer := g
	newer.Gang = &grant.Gang{Members: 2, Framework: "ddp", StartSeconds: 60, OnLost: "dance"}
	for name, tc := range map[string]struct {
		grant grant.Grant
		block bool
		conf  map[string]any
		want  string
	}{
		"no place to meet":                   {member, true, nil, `write server = "http://<placement-service>:3333"`},
		"a gang block without a grant of it": {g, true, nil, "was not admitted"},
		"a newer policy":                     {newer, true, map[string]any{"server": "http://127.0.0.1:1"}, "upgrade heteroflow-driver"},
	} {
		conf := map[string]any{"grant_public_key": public}
		for k, v := range tc.conf {
			conf[k] = v
		}
		r := newRig(t, conf)
		config := shell("true")
		config["grant"] = sign(t, key, tc.grant)
		if tc.block {
			config["gang"] = map[string]any{"framework": "ddp"}
		}
		cfg := r.taskConfig(config, func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
		if _, _, err := r.Start(r.ctx, cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// An NPU's own address comes from the node's file.
func TestGang_ArrivalOfAscend(t *testing.T) {
	t.Parallel()
	p := &plan{cfg: &driverpb.TaskConfig{}, share: admission{cards: []accel.Card{{Vendor: accel.Ascend, UUID: "N1", Index: 3}}}}
	a := p.arrival(func(path string) ([]byte, error) {
		if path != "/etc/hccn.conf" {
			t.Errorf("reads %s", path)
		}
		return []byte("address_3=192.168.1.3\n"), nil
	})
	if len(a.Cards) != 1 || a.Cards[0].Address != "192.168.1.3" || a.Vendor != "ascend" {
		t.Errorf("%+v", a)
	}
	none := p.arrival(func(string) ([]byte, error) { return nil, os.ErrNotExist })
	if none.Cards[0].Address != "" {
		t.Errorf("%+v", none)
	}
}
