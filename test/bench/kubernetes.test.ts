import { buildKubernetes } from '../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { tinyRound } from './bench.ts'

const { beforeAll, test } = needs(
  'root',
  'containerd',
  'crun',
  'containernetworking-plugins',
  'busybox-static',
  'docker-registry',
  'skopeo',
  'gcc',
  'openssl',
  'iproute2',
  'iptables',
)

// Four minutes of two processors where the cache lacks it, which is none of the benchmark.
beforeAll(() => buildKubernetes(), 1_200_000)

test('kubernetes-jobs works', () => tinyRound('kubernetes-jobs'), 300_000)
