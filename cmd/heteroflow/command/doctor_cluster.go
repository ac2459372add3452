package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/hashicorp/nomad/api"
	"github.com/jackc/pgx/v5"

	"github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/internal/version"
)

// driverName is the task driver as nodes list it.
const driverName = "heteroflow"

// why is the innermost sentence of an error: what the network or the other side said.
func why(err error) string {
	var web *url.Error
	if errors.As(err, &web) {
		err = web.Err
	}
	return err.Error()
}

// checkService asks the placement service how it is, and whether it knows the caller.
func (c *command) checkService(ctx context.Context, conn *connection) []finding {
	const name = "placement service"
	service, err := c.service(conn)
	if err != nil {
		return []finding{fail(name, "set HETEROFLOW_ADDR to its address, such as "+defaultAddr, "%s", err)}
	}
	health, err := service.GetHealthWithResponse(ctx)
	if err != nil {
		return []finding{fail(name, "start it with \"heteroflow server\" or \"heteroflow dev\", or set HETEROFLOW_ADDR to where it runs", "%s does not answer: %s", *conn.addr, why(err))}
	}
	if health.JSON200 == nil {
		return []finding{fail(name, "set HETEROFLOW_ADDR to the placement service", "%s answers %s: this is something else", *conn.addr, health.Status())}
	}
	all := []finding{ok(name, "%s, version %s", *conn.addr, health.JSON200.Version)}
	if health.JSON200.Version != version.Version {
		all[0] = warn(name, "use one version of both", "%s is version %s, this program %s", *conn.addr, health.JSON200.Version, version.Version)
	}
	ready, err := service.GetReadyWithResponse(ctx)
	if err != nil {
		return append(all, fail(name, "look at its log", "its /ready does not answer: %s", why(err)))
	}
	parts := ready.JSON200
	if parts == nil {
		parts = ready.JSON503
	}
	if parts != nil {
		for _, part := range parts.Parts {
			if part.OK {
				all = append(all, partOf(ok("its "+string(part.Name), "answers")))
			} else {
				all = append(all, partOf(fail("its "+string(part.Name), "the service goes on by itself when it answers again", "%s", cmp.Or(text(part.Reason), "does not answer"))))
			}
		}
	}
	info, err := service.GetInfoWithResponse(ctx)
	switch {
	case err != nil:
		all = append(all, partOf(fail("your key", "look at the service's log", "cannot be checked: %s", why(err))))
	case info.JSON200 == nil && info.StatusCode() == http.StatusUnauthorized:
		all = append(all, partOf(fail("your key", "set HETEROFLOW_TOKEN to a key: the first start of the service printed one, others come from \"heteroflow key create\"", "is missing or not known")))
	case info.JSON200 != nil:
		who := info.JSON200.Identity
		all = append(all, partOf(ok("you are", "%s of tenant %s, role %s", cmp.Or(who.User, who.Kind), cmp.Or(who.Tenant, "(all)"), who.Role)))
	}
	return all
}

// checkNodes looks for the two plugins on the nodes that the placement service sees.
func (c *command) checkNodes(ctx context.Context, conn *connection) []finding {
	nomad, err := c.nomad(conn)
	if err != nil {
		return nil // told by checkService
	}
	q := (&api.QueryOptions{}).WithContext(ctx)
	stubs, _, err := nomad.Nodes().List(q)
	if err != nil {
		if nomadStatus(err) == 0 {
			return nil // told by checkService
		}
		advice := "use a key or token that may read nodes"
		if nomadStatus(err) >= http.StatusInternalServerError {
			advice = "have Nomad answer the placement service first"
		}
		return []finding{warn("nodes", advice, "cannot be listed: %s", nomadError(conn, err))}
	}
	if len(stubs) == 0 {
		return []finding{fail("nodes", "start a Nomad client, with the plugins in its plugin_dir", "there are none")}
	}
	var all []finding
	blind := false
	const most = 50 // of a large cluster a sample says enough, and the rest is counted
	for _, stub := range stubs[:min(len(stubs), most)] {
		node, _, err := nomad.Nodes().Info(stub.ID, q)
		if err != nil {
			blind = true
			all = append(all, warn("node "+stub.Name, "", "cannot be read: %s", nomadError(conn, err)))
			continue
		}
		all = append(all, nodeFindings(node)...)
	}
	told := slices.ContainsFunc(all, func(f finding) bool { return f.Status != statusWarn })
	switch {
	case len(stubs) > most:
		all = append(all, ok("nodes", "%d more, not looked at", len(stubs)-most))
	case !told && !blind:
		all = append(all, fail("nodes", "make one of them ready as said above: until then every job with an accelerator waits or is refused", "none offers cards and can run tasks on them"))
	}
	return all
}

// switchTime is longer than a card that is asked to change its form takes: 60 seconds without a reservation, and a
// reading. A job that waits longer waits for an answer that does not come.
const switchTime = 2 * time.Minute

// checkQueue looks for jobs that wait for a card to change its form, where the node does not answer.
func (c *command) checkQueue(ctx context.Context, conn *connection) []finding {
	service, err := c.service(conn)
	if err != nil {
		return nil // told by checkService
	}
	state, most := client.JobState("waiting"), 1000
	answer, err := service.ListJobsWithResponse(ctx, &client.ListJobsParams{State: &state, Limit: &most})
	if err != nil || answer.JSON200 == nil {
		return nil // told by checkService
	}
	var all []finding
	for _, job := range answer.JSON200.Items {
		if text(job.ReasonCode) != "form_switch" || job.QueuedAt == nil || time.Since(*job.QueuedAt) < switchTime {
			continue
		}
		all = append(all, warn("job "+job.ID, "look at the log of heteroflow-device there: it needs server and token, a node key, in its plugin block, must be able to write its state_dir, and changes a card only while nothing runs on it",
			"waits since %s for a card to change its form: %s", moment(job.QueuedAt), text(job.Reason)))
	}
	return all
}

func nodeFindings(node *api.Node) []finding {
	name := "node " + node.Name
	if node.Status != api.NodeStatusReady {
		return []finding{fail(name, "look at Nomad's log there", "is %s", node.Status)}
	}
	vendors, sick := devicesOf(node)
	driver := node.Drivers[driverName]
	switch {
	case driver == nil || !driver.Detected:
		return []finding{warn(name, "put heteroflow-driver as \"heteroflow\" into its plugin_dir, add plugin \"heteroflow\" { } to its configuration, and restart Nomad", "has no task driver %q", driverName)}
	case !driver.Healthy:
		return []finding{fail(name, "", "task driver is not healthy: %s", driver.HealthDescription)}
	case len(vendors) == 0:
		return []finding{warn(name, "put heteroflow-device into its plugin_dir, add plugin \"heteroflow-device\" { }, and look at \"heteroflow-device -once\" there", "offers no cards")}
	}
	all := []finding{ok(name, "driver %s, cards of %s", node.Attributes["driver."+driverName+".version"], strings.Join(vendors, ", "))}
	if sick > 0 {
		all = append(all, warn(name, "see \"heteroflow gpus\" for each card's reason", "%d instances are not healthy", sick))
	}
	return all
}

func devicesOf(node *api.Node) (vendors []string, sick int) {
	if node.NodeResources == nil {
		return nil, 0
	}
	for _, group := range node.NodeResources.Devices {
		if len(group.Instances) > 0 && !slices.Contains(vendors, group.Vendor) {
			vendors = append(vendors, group.Vendor)
		}
		for _, instance := range group.Instances {
			if !instance.Healthy {
				sick++
			}
		}
	}
	slices.Sort(vendors)
	return vendors, sick
}

// checkNomad asks the Nomad that the environment names.
func (c *command) checkNomad(ctx context.Context, conn *connection) []finding {
	addr := c.env.Getenv("NOMAD_ADDR")
	switch {
	case addr == "":
		return nil
	case strings.TrimRight(addr, "/") == strings.TrimRight(*conn.addr, "/"):
		return []finding{ok("Nomad", "NOMAD_ADDR is the placement service, as users of the nomad CLI set it")}
	}
	nomad, err := api.NewClient(&api.Config{Address: addr, SecretID: c.env.Getenv("NOMAD_TOKEN"), TLSConfig: c.tls()})
	if err != nil {
		return []finding{fail("Nomad", "set NOMAD_ADDR to an address such as http://127.0.0.1:4646", "%s", err)}
	}
	var self struct {
		Member struct{ Tags map[string]string }
		Config struct{ Version struct{ Version string } }
	}
	_, err = nomad.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case err == nil:
		return []finding{ok("Nomad", "%s, version %s", addr, cmp.Or(self.Config.Version.Version, self.Member.Tags["build"], "not told"))}
	case nomadStatus(err) == http.StatusForbidden:
		return []finding{ok("Nomad", "%s answers; NOMAD_TOKEN may not read the agent", addr)}
	}
	return []finding{fail("Nomad", "start it, or set NOMAD_ADDR to where it runs", "%s does not answer: %s", addr, why(err))}
}

// checkConsul asks the Consul that the environment names.
func (c *command) checkConsul(ctx context.Context) []finding {
	addr := c.env.Getenv("CONSUL_HTTP_ADDR")
	if addr == "" {
		return []finding{ok("Consul", "not used: CONSUL_HTTP_ADDR is not set, services are found in Nomad's registry")}
	}
	config := consul.DefaultConfig()
	config.Address, config.Token = addr, c.env.Getenv("CONSUL_HTTP_TOKEN")
	client, err := consul.NewClient(config)
	if err != nil {
		return []finding{fail("Consul", "set CONSUL_HTTP_ADDR to an address such as 127.0.0.1:8500", "%s", err)}
	}
	leader, err := client.Status().LeaderWithQueryOptions((&consul.QueryOptions{}).WithContext(ctx))
	switch {
	case err != nil:
		return []finding{fail("Consul", "start it, or set CONSUL_HTTP_ADDR to where it runs", "%s does not answer: %s", addr, why(err))}
	case leader == "":
		return []finding{fail("Consul", "look at its log", "%s has no leader", addr)}
	}
	return []finding{ok("Consul", "%s, leader %s", addr, leader)}
}

// checkDatabase connects to the PostgreSQL that the environment names. It changes nothing there.
func (c *command) checkDatabase(ctx context.Context) []finding {
	dsn := c.env.Getenv("DATABASE_URL")
	switch {
	case dsn == "":
		return nil
	case !strings.HasPrefix(dsn, "postgres"):
		return []finding{ok("database", "SQLite, for one machine")}
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return []finding{fail("database", "start PostgreSQL, and check user, password and name in DATABASE_URL", "%s", redacted(err, dsn))}
	}
	var server string
	err = conn.QueryRow(ctx, "SHOW server_version").Scan(&server)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return []finding{fail("database", "look at PostgreSQL's log", "%s", redacted(err, dsn))}
	}
	return []finding{ok("database", "PostgreSQL %s", server)}
}

// redacted keeps the password of a database out of an error.
func redacted(err error, dsn string) string {
	said := err.Error()
	if u, parseErr := url.Parse(dsn); parseErr == nil {
		said = strings.ReplaceAll(said, dsn, u.Redacted())
		if password, set := u.User.Password(); set && password != "" {
			said = strings.ReplaceAll(said, password, "xxxxx")
		}
		return said
	}
	return fmt.Sprintf("DATABASE_URL is not a URL: %T", err)
}
