import { addressJudge } from '../../../src/clients/denied-networks.ts'
import { openHttp } from '../../../src/clients/http.ts'
import { openS3 } from '../../../src/clients/s3.ts'
import type { StorageDriver } from '../../../src/drivers/storage/contract.ts'
import { openS3Storage } from '../../../src/drivers/storage/s3.ts'
import { startS3 } from '../../../sites/s3.ts'
import { at, storageConformance, storageKinds } from './conformance.ts'

const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })

storageConformance('a prefix of a bucket', storageKinds.bucket, async () => {
  const { endpoint, accessKey, bucket, stop } = await startS3()
  bucket('part')
  const prefix = at('deep/prefix')
  const again = (): StorageDriver => {
    const place = { endpoint, bucket: 'part', region: 'us-east-1', pathStyle: true }
    return openS3Storage(openS3({ http, place, credential: accessKey }), { prefix, signed: true })
  }
  return { driver: again(), again, prefix, stop }
})
