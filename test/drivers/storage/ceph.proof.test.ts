import { addressJudge } from '../../../src/clients/denied-networks.ts'
import { openHttp } from '../../../src/clients/http.ts'
import { openS3 } from '../../../src/clients/s3.ts'
import { openS3Storage } from '../../../src/drivers/storage/s3.ts'
import { startCeph } from '../../../sites/ceph.ts'
import { needs } from '../../support/needs.ts'
import { at, storageConformance, storageKinds } from './conformance.ts'

/** A second S3 server, which keeps flat keys and answers differently in many places. */

const { describe } = needs('root', 'radosgw', 'ceph-mon', 'ceph-osd')
const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })

describe("Ceph's S3 server", () => {
  storageConformance('a prefix of a bucket of Ceph', storageKinds.bucket, async () => {
    const site = await startCeph()
    await site.bucket('bucket')
    const prefix = at('deep/prefix')
    const again = () =>
      openS3Storage(
        openS3({
          http,
          place: { endpoint: site.endpoint, bucket: 'bucket', region: 'us-east-1', pathStyle: true },
          credential: site.accessKey,
        }),
        { prefix, signed: true },
      )
    return { driver: again(), again, prefix, stop: site.stop }
  })
})
