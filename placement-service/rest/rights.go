package rest

import (
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/placement-service/identity"
)

// right is what an operation needs of its caller.
type right struct {
	public  bool     // needs no credentials
	anybody bool     // any credentials do
	verb    string   // with object: what the role must be allowed
	objects []string // one of them is enough; the handler then looks closer
	nodes   bool     // for device plugins and operators; otherwise for people only
}

func may(verb string, objects ...string) right { return right{verb: verb, objects: objects} }

// rights says for each operation of the API who may call it. An operation that is not here may not be called.
var rights = map[string]right{
	"getHealth":            {public: true},
	"getReady":             {public: true},
	"getMetrics":           may(auth.Read, auth.Nodes),
	"getOpenAPI":           {anybody: true},
	"getInfo":              {anybody: true},
	"listGPUs":             may(auth.Read, auth.Pools),
	"listNodes":            may(auth.Read, auth.Nodes),
	"listJobs":             may(auth.Read, auth.Jobs),
	"getJob":               may(auth.Read, auth.Jobs),
	"stopJob":              may(auth.Write, auth.Jobs),
	"explainJob":           may(auth.Read, auth.Jobs),
	"listMoves":            may(auth.Read, auth.Settings),
	"makeMoves":            may(auth.Write, auth.Settings),
	"getFragmentation":     may(auth.Read, auth.Nodes),
	"listQueue":            may(auth.Read, auth.Jobs),
	"listReservations":     may(auth.Read, auth.Jobs),
	"listPlugins":          may(auth.Read, auth.Settings),
	"updatePlugin":         may(auth.Write, auth.Settings),
	"listPluginVersions":   may(auth.Read, auth.Settings),
	"restorePluginVersion": may(auth.Write, auth.Settings),
	"listKeys":             may(auth.Read, auth.Keys, auth.EndpointKeys),
	"createKey":            may(auth.Write, auth.Keys, auth.EndpointKeys),
	"deleteKey":            may(auth.Write, auth.Keys, auth.EndpointKeys),
	"rotateKey":            may(auth.Write, auth.Keys, auth.EndpointKeys),
	"retireKey":            may(auth.Write, auth.Keys, auth.EndpointKeys),
	"listLimits":           may(auth.Read, auth.Limits),
	"setLimit":             may(auth.Write, auth.Limits),
	"deleteLimit":          may(auth.Write, auth.Limits),
	"listPrices":           may(auth.Read, auth.Usage),
	"setPrice":             may(auth.Write, auth.Settings),
	"deletePrice":          may(auth.Write, auth.Settings),
	"listAudit":            may(auth.Read, auth.Audit),
	"listEndpoints":        may(auth.Read, auth.Endpoints),
	"getEndpoint":          may(auth.Read, auth.Endpoints),
	"createEndpoint":       may(auth.Write, auth.Endpoints),
	"updateEndpoint":       may(auth.Write, auth.Endpoints),
	"deleteEndpoint":       may(auth.Write, auth.Endpoints),
	"listScaling":          may(auth.Read, auth.Jobs),
	"listUsage":            may(auth.Read, auth.Usage),
	"sumUsage":             may(auth.Read, auth.Usage),
	"listIntents":          {verb: auth.Read, objects: []string{auth.Intents}, nodes: true},
	"claimIntent":          {verb: auth.Write, objects: []string{auth.Intents}, nodes: true},
	"reportIntent":         {verb: auth.Write, objects: []string{auth.Intents}, nodes: true},
	"meetGang":             {verb: auth.Write, objects: []string{auth.Intents}, nodes: true}, // and the task's grant
}

// allows reports whether the caller may.
func (r right) allows(who identity.Who) bool {
	if r.public || r.anybody {
		return true
	}
	if !who.Person() && (!r.nodes || who.Kind != auth.KindNode) {
		return false
	}
	for _, object := range r.objects {
		if who.Can(r.verb, object) {
			return true
		}
	}
	return false
}
