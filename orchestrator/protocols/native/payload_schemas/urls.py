"""`/v1/payload-schemas`."""

from rest_framework.routers import SimpleRouter

from orchestrator.protocols.native.payload_schemas.views import PayloadSchemaViewSet

router = SimpleRouter(trailing_slash=False)
router.register("payload-schemas", PayloadSchemaViewSet, basename="payload-schema")

urlpatterns = router.urls
